package abi

// Operations of [AMDGPUIocCtx] (AMDGPU_CTX_OP_*).
const (
	AMDGPUCtxOpAlloc       = 1
	AMDGPUCtxOpFree        = 2
	AMDGPUCtxOpQueryState  = 3
	AMDGPUCtxOpQueryState2 = 4
)

// AMDGPUCtxIn belongs to [AMDGPUIocCtx].
type AMDGPUCtxIn struct {
	Op       uint32 `c:"op"`
	Flags    uint32 `c:"flags"`
	CtxID    uint32 `c:"ctx_id"`
	Priority int32  `c:"priority"`
}

// AMDGPUCtxAllocOut is the result of AMDGPUCtxOpAlloc.
type AMDGPUCtxAllocOut struct {
	CtxID uint32 `c:"alloc.ctx_id"`
	Pad   uint32
}

// AMDGPUCtxStateOut is the result of AMDGPUCtxOpQueryState.
type AMDGPUCtxStateOut struct {
	Flags       uint64 `c:"state.flags"`
	Hangs       uint32 `c:"state.hangs"`
	ResetStatus uint32 `c:"state.reset_status"`
}

// Operations of [AMDGPUIocBOList] (AMDGPU_BO_LIST_OP_*).
const (
	AMDGPUBOListOpCreate  = 0
	AMDGPUBOListOpDestroy = 1
	AMDGPUBOListOpUpdate  = 2
)

// AMDGPUBOListIn belongs to [AMDGPUIocBOList], and is the content of a
// BO_HANDLES chunk.
type AMDGPUBOListIn struct {
	Operation  uint32 `c:"operation"`
	ListHandle uint32 `c:"list_handle"`
	BONumber   uint32 `c:"bo_number"`
	BOInfoSize uint32 `c:"bo_info_size"`
	BOInfoPtr  uint64 `c:"bo_info_ptr"` // array of AMDGPUBOListEntry
}

// AMDGPUBOListOut is the result of [AMDGPUIocBOList].
type AMDGPUBOListOut struct {
	ListHandle uint32 `c:"list_handle"`
	Pad        uint32
}

// AMDGPUBOListEntry is one element of a BO list.
type AMDGPUBOListEntry struct {
	BOHandle   uint32 `c:"bo_handle"`
	BOPriority uint32 `c:"bo_priority"`
}

// Chunks of a submission (AMDGPU_CHUNK_ID_*).
const (
	AMDGPUChunkIB           = 0x01
	AMDGPUChunkFence        = 0x02
	AMDGPUChunkDependencies = 0x03
	AMDGPUChunkBOHandles    = 0x06
)

// Hardware blocks (AMDGPU_HW_IP_*).
const (
	AMDGPUHWIPGFX     = 0
	AMDGPUHWIPCompute = 1
	AMDGPUHWIPDMA     = 2
)

// AMDGPUCSIn belongs to [AMDGPUIocCS]. Chunks points to an array of NumChunks
// pointers, each to an [AMDGPUCSChunk].
type AMDGPUCSIn struct {
	CtxID        uint32 `c:"ctx_id"`
	BOListHandle uint32 `c:"bo_list_handle"`
	NumChunks    uint32 `c:"num_chunks"`
	Flags        uint32 `c:"flags"`
	Chunks       uint64 `c:"chunks"`
}

// AMDGPUCSOut is the result of [AMDGPUIocCS]: the handle for WAIT_CS.
type AMDGPUCSOut struct {
	Handle uint64 `c:"handle"`
}

// AMDGPUCSChunk names one chunk of a submission; its length is in dwords.
type AMDGPUCSChunk struct {
	ChunkID   uint32 `c:"chunk_id"`
	LengthDW  uint32 `c:"length_dw"`
	ChunkData uint64 `c:"chunk_data"`
}

// AMDGPUCSChunkIB is the content of an IB chunk.
type AMDGPUCSChunkIB struct {
	Pad        uint32
	Flags      uint32 `c:"flags"`
	VAStart    uint64 `c:"va_start"`
	IBBytes    uint32 `c:"ib_bytes"`
	IPType     uint32 `c:"ip_type"`
	IPInstance uint32 `c:"ip_instance"`
	Ring       uint32 `c:"ring"`
}

// AMDGPUWaitCSIn belongs to [AMDGPUIocWaitCS]. Timeout is absolute, in
// nanoseconds of CLOCK_MONOTONIC.
type AMDGPUWaitCSIn struct {
	Handle     uint64 `c:"handle"`
	Timeout    uint64 `c:"timeout"`
	IPType     uint32 `c:"ip_type"`
	IPInstance uint32 `c:"ip_instance"`
	Ring       uint32 `c:"ring"`
	CtxID      uint32 `c:"ctx_id"`
}

// AMDGPUWaitCSOut is the result of [AMDGPUIocWaitCS]: Status 1 is busy.
type AMDGPUWaitCSOut struct {
	Status uint64 `c:"status"`
}
