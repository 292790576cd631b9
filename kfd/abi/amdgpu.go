package abi

// Memory domains and creation flags (AMDGPU_GEM_DOMAIN_*, AMDGPU_GEM_CREATE_*).
const (
	AMDGPUDomainCPU  = 0x1
	AMDGPUDomainGTT  = 0x2
	AMDGPUDomainVRAM = 0x4

	AMDGPUCreateCPUAccessRequired = 1 << 0
	AMDGPUCreateNoCPUAccess       = 1 << 1
	AMDGPUCreateCPUGTTUSWC        = 1 << 2
	AMDGPUCreateVRAMCleared       = 1 << 3
	AMDGPUCreateVRAMContiguous    = 1 << 5
	AMDGPUCreateVMAlwaysValid     = 1 << 6
	AMDGPUCreateExplicitSync      = 1 << 7
)

// AMDGPUGEMCreateIn belongs to [AMDGPUIocGEMCreate].
type AMDGPUGEMCreateIn struct {
	BOSize      uint64 `c:"bo_size"`
	Alignment   uint64 `c:"alignment"`
	Domains     uint64 `c:"domains"`
	DomainFlags uint64 `c:"domain_flags"`
}

// AMDGPUGEMCreateOut is the result of [AMDGPUIocGEMCreate].
type AMDGPUGEMCreateOut struct {
	Handle uint32 `c:"handle"`
	Pad    uint32
}

// AMDGPUGEMMmapIn belongs to [AMDGPUIocGEMMmap].
type AMDGPUGEMMmapIn struct {
	Handle uint32 `c:"handle"`
	Pad    uint32
}

// AMDGPUGEMMmapOut is the result of [AMDGPUIocGEMMmap].
type AMDGPUGEMMmapOut struct {
	AddrPtr uint64 `c:"addr_ptr"` // offset for mmap on the render node
}

// Flags of [AMDGPUIocGEMUserptr] (AMDGPU_GEM_USERPTR_*).
const (
	AMDGPUUserptrReadonly = 1 << 0
	AMDGPUUserptrAnononly = 1 << 1
	AMDGPUUserptrValidate = 1 << 2
	AMDGPUUserptrRegister = 1 << 3
)

// AMDGPUGEMUserptrArgs belongs to [AMDGPUIocGEMUserptr].
type AMDGPUGEMUserptrArgs struct {
	Addr   uint64 `c:"addr"`
	Size   uint64 `c:"size"`
	Flags  uint32 `c:"flags"`
	Handle uint32 `c:"handle"` // out
}

// Operations and flags of [AMDGPUIocGEMVA] (AMDGPU_VA_OP_*, AMDGPU_VM_*).
const (
	AMDGPUVAOpMap     = 1
	AMDGPUVAOpUnmap   = 2
	AMDGPUVAOpClear   = 3
	AMDGPUVAOpReplace = 4

	AMDGPUVMDelayUpdate    = 1 << 0
	AMDGPUVMPageReadable   = 1 << 1
	AMDGPUVMPageWriteable  = 1 << 2
	AMDGPUVMPageExecutable = 1 << 3
)

// AMDGPUGEMVAArgs belongs to [AMDGPUIocGEMVA].
type AMDGPUGEMVAArgs struct {
	Handle     uint32 `c:"handle"`
	Pad        uint32
	Operation  uint32 `c:"operation"`
	Flags      uint32 `c:"flags"`
	VAAddress  uint64 `c:"va_address"`
	OffsetInBO uint64 `c:"offset_in_bo"`
	MapSize    uint64 `c:"map_size"`
}

// AMDGPUGEMWaitIdleIn belongs to [AMDGPUIocGEMWaitIdle]. Timeout is absolute,
// in nanoseconds of CLOCK_MONOTONIC.
type AMDGPUGEMWaitIdleIn struct {
	Handle  uint32 `c:"handle"`
	Flags   uint32 `c:"flags"`
	Timeout uint64 `c:"timeout"`
}

// AMDGPUGEMWaitIdleOut is the result of [AMDGPUIocGEMWaitIdle]: Status 1 is busy.
type AMDGPUGEMWaitIdleOut struct {
	Status uint32 `c:"status"`
	Domain uint32 `c:"domain"`
}

// Operations of [AMDGPUIocGEMOp] (AMDGPU_GEM_OP_*).
const (
	AMDGPUGEMOpGetCreateInfo  = 0
	AMDGPUGEMOpSetPlacement   = 1
	AMDGPUGEMOpGetMappingInfo = 2 // Linux 6.18, with AMDGPUGEMOpMappingArgs
)

// AMDGPUGEMOpArgs belongs to [AMDGPUIocGEMOp].
type AMDGPUGEMOpArgs struct {
	Handle uint32 `c:"handle"`
	Op     uint32 `c:"op"`
	Value  uint64 `c:"value"`
}

// AMDGPUGEMOpMappingArgs is [AMDGPUGEMOpArgs] as Linux 6.18 extends it, for
// AMDGPUGEMOpGetMappingInfo: Value points to NumEntries [AMDGPUGEMVMEntry].
type AMDGPUGEMOpMappingArgs struct {
	Handle     uint32 `c:"handle"`
	Op         uint32 `c:"op"`
	Value      uint64 `c:"value"`
	NumEntries uint32 `c:"num_entries"`
	Pad        uint32
}

// AMDGPUGEMVMEntry is one mapping of a BO in the process's GPU address space.
type AMDGPUGEMVMEntry struct {
	Addr   uint64 `c:"addr"`
	Size   uint64 `c:"size"`
	Offset uint64 `c:"offset"`
	Flags  uint64 `c:"flags"`
}

// AMDGPUGEMListHandlesArgs belongs to [AMDGPUIocGEMListHandles]: Entries points
// to NumEntries [AMDGPUGEMListHandlesEntry].
type AMDGPUGEMListHandlesArgs struct {
	Entries    uint64 `c:"entries"`
	NumEntries uint32 `c:"num_entries"`
	Pad        uint32
}

// AMDGPUGEMListIsImport marks a BO that came from another process or device.
const AMDGPUGEMListIsImport = 1 << 0

// AMDGPUGEMListHandlesEntry describes one GEM handle of the process.
type AMDGPUGEMListHandlesEntry struct {
	GEMHandle        uint32 `c:"gem_handle"`
	Flags            uint32 `c:"flags"`
	Size             uint64 `c:"size"`
	PreferredDomains uint64 `c:"preferred_domains"`
	AllocFlags       uint64 `c:"alloc_flags"`
	Alignment        uint64 `c:"alignment"`
}
