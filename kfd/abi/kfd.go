package abi

// Requests of /dev/kfd.
const (
	KFDIocGetVersion             Request = 0x80084b01
	KFDIocCreateQueue            Request = 0xc0584b02
	KFDIocDestroyQueue           Request = 0xc0084b03
	KFDIocSetMemoryPolicy        Request = 0x40204b04
	KFDIocGetClockCounters       Request = 0xc0284b05
	KFDIocUpdateQueue            Request = 0x40184b07
	KFDIocCreateEvent            Request = 0xc0204b08
	KFDIocDestroyEvent           Request = 0x40084b09
	KFDIocSetEvent               Request = 0x40084b0a
	KFDIocResetEvent             Request = 0x40084b0b
	KFDIocWaitEvents             Request = 0xc0184b0c
	KFDIocSetScratchBackingVA    Request = 0xc0104b11
	KFDIocGetTileConfig          Request = 0xc0284b12
	KFDIocSetTrapHandler         Request = 0x40184b13
	KFDIocGetProcessAperturesNew Request = 0xc0104b14
	KFDIocAcquireVM              Request = 0x40084b15
	KFDIocAllocMemory            Request = 0xc0284b16
	KFDIocFreeMemory             Request = 0x40084b17
	KFDIocMapMemory              Request = 0xc0184b18
	KFDIocUnmapMemory            Request = 0xc0184b19
	KFDIocGetDmabufInfo          Request = 0xc0204b1c
	KFDIocImportDmabuf           Request = 0xc0184b1d
	KFDIocSVM                    Request = 0xc0184b20
	KFDIocSetXNACKMode           Request = 0xc0044b21
	KFDIocCRIUOp                 Request = 0xc0384b22
	KFDIocAvailableMemory        Request = 0xc0104b23
	KFDIocExportDmabuf           Request = 0xc0104b24 // KFD 1.12
	KFDIocRuntimeEnable          Request = 0xc0104b25 // KFD 1.13
)

// The interface version that CRIU needs: GTT contents by SDMA (1.8).
const (
	KFDMajorVersion   = 1
	KFDMinMinorForCR  = 8
	KFDInvalidFD      = 0xffffffff // "no dmabuf" in KFDCRIUBoBucket.DmabufFD
	KFDSignalEventMax = 4096
)

// Memory types of an allocation (KFD_IOC_ALLOC_MEM_FLAGS_*).
const (
	KFDMemVRAM      = 1 << 0
	KFDMemGTT       = 1 << 1
	KFDMemUserptr   = 1 << 2
	KFDMemDoorbell  = 1 << 3
	KFDMemMMIORemap = 1 << 4

	// KFDMemPaged is what a pages file holds: the contents of BOs of these
	// types are copied out by the plugin, the others have none or live in the
	// process's own pages.
	KFDMemPaged = KFDMemVRAM | KFDMemGTT
)

// Attributes of an allocation (KFD_IOC_ALLOC_MEM_FLAGS_*).
const (
	KFDMemUncached     = 1 << 25
	KFDMemCoherent     = 1 << 26
	KFDMemAQLQueueMem  = 1 << 27
	KFDMemNoSubstitute = 1 << 28
	KFDMemPublic       = 1 << 29
	KFDMemExecutable   = 1 << 30
	KFDMemWritable     = 1 << 31
)

// Queue types (KFD_IOC_QUEUE_TYPE_*).
const (
	KFDQueueCompute    = 0
	KFDQueueSDMA       = 1
	KFDQueueComputeAQL = 2
	KFDQueueSDMAXGMI   = 3
)

// Limits of a queue.
const (
	KFDMaxQueuePercentage = 100
	KFDMaxQueuePriority   = 15
	KFDMinQueueRingSize   = 1024
)

// Event types (KFD_IOC_EVENT_*) and results of a wait (KFD_IOC_WAIT_RESULT_*).
const (
	KFDEventSignal      = 0
	KFDEventHWException = 3
	KFDEventMemory      = 8

	KFDWaitComplete = 0
	KFDWaitTimeout  = 1
	KFDWaitFail     = 2
)

// KFDGetVersionArgs is the result of [KFDIocGetVersion].
type KFDGetVersionArgs struct {
	Major uint32 `c:"major_version"`
	Minor uint32 `c:"minor_version"`
}

// KFDCreateQueueArgs belongs to [KFDIocCreateQueue]. KFD 1.17 appends
// sdma_engine_id and a pad.
type KFDCreateQueueArgs struct {
	RingBaseAddress       uint64 `c:"ring_base_address"`
	WritePointerAddress   uint64 `c:"write_pointer_address"`
	ReadPointerAddress    uint64 `c:"read_pointer_address"`
	DoorbellOffset        uint64 `c:"doorbell_offset"` // out: mmap offset on /dev/kfd
	RingSize              uint32 `c:"ring_size"`
	GPUID                 uint32 `c:"gpu_id"`
	QueueType             uint32 `c:"queue_type"`
	QueuePercentage       uint32 `c:"queue_percentage"`
	QueuePriority         uint32 `c:"queue_priority"`
	QueueID               uint32 `c:"queue_id"` // out
	EOPBufferAddress      uint64 `c:"eop_buffer_address"`
	EOPBufferSize         uint64 `c:"eop_buffer_size"`
	CtxSaveRestoreAddress uint64 `c:"ctx_save_restore_address"`
	CtxSaveRestoreSize    uint32 `c:"ctx_save_restore_size"`
	CtlStackSize          uint32 `c:"ctl_stack_size"`
}

// KFDDestroyQueueArgs belongs to [KFDIocDestroyQueue].
type KFDDestroyQueueArgs struct {
	QueueID uint32 `c:"queue_id"`
	Pad     uint32
}

// KFDUpdateQueueArgs belongs to [KFDIocUpdateQueue].
type KFDUpdateQueueArgs struct {
	RingBaseAddress uint64 `c:"ring_base_address"`
	QueueID         uint32 `c:"queue_id"`
	RingSize        uint32 `c:"ring_size"`
	QueuePercentage uint32 `c:"queue_percentage"`
	QueuePriority   uint32 `c:"queue_priority"`
}

// KFDSetMemoryPolicyArgs belongs to [KFDIocSetMemoryPolicy]. From KFD 1.18 the
// pad carries process flags.
type KFDSetMemoryPolicyArgs struct {
	AlternateApertureBase uint64 `c:"alternate_aperture_base"`
	AlternateApertureSize uint64 `c:"alternate_aperture_size"`
	GPUID                 uint32 `c:"gpu_id"`
	DefaultPolicy         uint32 `c:"default_policy"`
	AlternatePolicy       uint32 `c:"alternate_policy"`
	Pad                   uint32
}

// KFDGetClockCountersArgs belongs to [KFDIocGetClockCounters].
type KFDGetClockCountersArgs struct {
	GPUClockCounter    uint64 `c:"gpu_clock_counter"`
	CPUClockCounter    uint64 `c:"cpu_clock_counter"`
	SystemClockCounter uint64 `c:"system_clock_counter"`
	SystemClockFreq    uint64 `c:"system_clock_freq"`
	GPUID              uint32 `c:"gpu_id"`
	Pad                uint32
}

// KFDProcessDeviceApertures is one element of the array that
// [KFDIocGetProcessAperturesNew] fills.
type KFDProcessDeviceApertures struct {
	LDSBase      uint64 `c:"lds_base"`
	LDSLimit     uint64 `c:"lds_limit"`
	ScratchBase  uint64 `c:"scratch_base"`
	ScratchLimit uint64 `c:"scratch_limit"`
	GPUVMBase    uint64 `c:"gpuvm_base"`
	GPUVMLimit   uint64 `c:"gpuvm_limit"`
	GPUID        uint32 `c:"gpu_id"`
	Pad          uint32
}

// KFDGetProcessAperturesNewArgs belongs to [KFDIocGetProcessAperturesNew]. A
// caller that passes NumOfNodes 0 is told how many there are.
type KFDGetProcessAperturesNewArgs struct {
	AperturesPtr uint64 `c:"kfd_process_device_apertures_ptr"`
	NumOfNodes   uint32 `c:"num_of_nodes"`
	Pad          uint32
}

// KFDAcquireVMArgs belongs to [KFDIocAcquireVM].
type KFDAcquireVMArgs struct {
	DRMFD uint32 `c:"drm_fd"`
	GPUID uint32 `c:"gpu_id"`
}

// KFDAllocMemoryArgs belongs to [KFDIocAllocMemory]. MmapOffset is the user
// address for a userptr on the way in, the offset to map on the way out.
type KFDAllocMemoryArgs struct {
	VAAddr     uint64 `c:"va_addr"`
	Size       uint64 `c:"size"`
	Handle     uint64 `c:"handle"`
	MmapOffset uint64 `c:"mmap_offset"`
	GPUID      uint32 `c:"gpu_id"`
	Flags      uint32 `c:"flags"`
}

// KFDFreeMemoryArgs belongs to [KFDIocFreeMemory].
type KFDFreeMemoryArgs struct {
	Handle uint64 `c:"handle"`
}

// KFDMapMemoryArgs belongs to [KFDIocMapMemory] and [KFDIocUnmapMemory].
type KFDMapMemoryArgs struct {
	Handle            uint64 `c:"handle"`
	DeviceIDsArrayPtr uint64 `c:"device_ids_array_ptr"` // array of uint32 gpu_id
	NDevices          uint32 `c:"n_devices"`
	NSuccess          uint32 `c:"n_success"`
}

// KFDGetDmabufInfoArgs belongs to [KFDIocGetDmabufInfo].
type KFDGetDmabufInfoArgs struct {
	Size         uint64 `c:"size"`
	MetadataPtr  uint64 `c:"metadata_ptr"`
	MetadataSize uint32 `c:"metadata_size"`
	GPUID        uint32 `c:"gpu_id"`
	Flags        uint32 `c:"flags"`
	DmabufFD     uint32 `c:"dmabuf_fd"`
}

// KFDImportDmabufArgs belongs to [KFDIocImportDmabuf].
type KFDImportDmabufArgs struct {
	VAAddr   uint64 `c:"va_addr"`
	Handle   uint64 `c:"handle"`
	GPUID    uint32 `c:"gpu_id"`
	DmabufFD uint32 `c:"dmabuf_fd"`
}

// KFDExportDmabufArgs belongs to [KFDIocExportDmabuf].
type KFDExportDmabufArgs struct {
	Handle   uint64 `c:"handle"`
	Flags    uint32 `c:"flags"`
	DmabufFD uint32 `c:"dmabuf_fd"`
}

// KFDSetScratchBackingVAArgs belongs to [KFDIocSetScratchBackingVA].
type KFDSetScratchBackingVAArgs struct {
	VAAddr uint64 `c:"va_addr"`
	GPUID  uint32 `c:"gpu_id"`
	Pad    uint32
}

// KFDGetTileConfigArgs belongs to [KFDIocGetTileConfig].
type KFDGetTileConfigArgs struct {
	TileConfigPtr       uint64 `c:"tile_config_ptr"`
	MacroTileConfigPtr  uint64 `c:"macro_tile_config_ptr"`
	NumTileConfigs      uint32 `c:"num_tile_configs"`
	NumMacroTileConfigs uint32 `c:"num_macro_tile_configs"`
	GPUID               uint32 `c:"gpu_id"`
	GBAddrConfig        uint32 `c:"gb_addr_config"`
	NumBanks            uint32 `c:"num_banks"`
	NumRanks            uint32 `c:"num_ranks"`
}

// KFDSetTrapHandlerArgs belongs to [KFDIocSetTrapHandler].
type KFDSetTrapHandlerArgs struct {
	TBAAddr uint64 `c:"tba_addr"`
	TMAAddr uint64 `c:"tma_addr"`
	GPUID   uint32 `c:"gpu_id"`
	Pad     uint32
}

// KFDAvailableMemoryArgs belongs to [KFDIocAvailableMemory].
type KFDAvailableMemoryArgs struct {
	Available uint64 `c:"available"`
	GPUID     uint32 `c:"gpu_id"`
	Pad       uint32
}

// KFDSetXNACKModeArgs belongs to [KFDIocSetXNACKMode]: negative asks, zero and
// one set.
type KFDSetXNACKModeArgs struct {
	XNACKEnabled int32 `c:"xnack_enabled"`
}

// KFDRuntimeEnableArgs belongs to [KFDIocRuntimeEnable].
type KFDRuntimeEnableArgs struct {
	RDebug           uint64 `c:"r_debug"`
	ModeMask         uint32 `c:"mode_mask"`
	CapabilitiesMask uint32 `c:"capabilities_mask"`
}

// KFDSVMArgs is the head of the argument of [KFDIocSVM]; NAttr elements of
// [KFDSVMAttribute] follow it.
type KFDSVMArgs struct {
	StartAddr uint64 `c:"start_addr"`
	Size      uint64 `c:"size"`
	Op        uint32 `c:"op"`
	NAttr     uint32 `c:"nattr"`
}

// KFDSVMAttribute is a pair of attribute type and value.
type KFDSVMAttribute struct {
	Type  uint32 `c:"type"`
	Value uint32 `c:"value"`
}
