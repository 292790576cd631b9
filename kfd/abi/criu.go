package abi

// Operations of [KFDIocCRIUOp] (enum kfd_criu_op).
//
// PROCESS_INFO, CHECKPOINT and UNPAUSE are accepted from the KFD's owner or
// from the thread that ptraces the target; RESTORE from the restored task
// itself; RESUME from any task with the capability, naming a pid of its own
// pid namespace. All need CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN.
const (
	KFDCRIUProcessInfo = 0
	KFDCRIUCheckpoint  = 1
	KFDCRIUUnpause     = 2
	KFDCRIURestore     = 3
	KFDCRIUResume      = 4
)

// KFDCRIUArgs belongs to [KFDIocCRIUOp]. The C structure ends in four bytes of
// alignment.
type KFDCRIUArgs struct {
	Devices      uint64 `c:"devices"`   // array of KFDCRIUDeviceBucket
	BOs          uint64 `c:"bos"`       // array of KFDCRIUBoBucket
	PrivData     uint64 `c:"priv_data"` // see KFDPriv*
	PrivDataSize uint64 `c:"priv_data_size"`
	NumDevices   uint32 `c:"num_devices"`
	NumBOs       uint32 `c:"num_bos"`
	NumObjects   uint32 `c:"num_objects"` // queues + events + SVM ranges
	PID          uint32 `c:"pid"`
	Op           uint32 `c:"op"`
	Pad          uint32
}

// KFDCRIUDeviceBucket describes one GPU of the process.
type KFDCRIUDeviceBucket struct {
	UserGPUID   uint32 `c:"user_gpu_id"`   // what the process knows
	ActualGPUID uint32 `c:"actual_gpu_id"` // what this host calls it
	DRMFD       uint32 `c:"drm_fd"`
	Pad         uint32
}

// KFDCRIUBoBucket describes one buffer object of the process.
type KFDCRIUBoBucket struct {
	Addr           uint64 `c:"addr"`
	Size           uint64 `c:"size"`
	Offset         uint64 `c:"offset"`
	RestoredOffset uint64 `c:"restored_offset"`
	GPUID          uint32 `c:"gpu_id"` // user_gpu_id
	AllocFlags     uint32 `c:"alloc_flags"`
	DmabufFD       uint32 `c:"dmabuf_fd"`
	Pad            uint32
}

// What the KFD writes to priv_data (kfd_priv.h). It is a blob for CRIU, but
// its version has been 1 since it exists. In order: one [KFDPrivProcess], a
// [KFDPrivDevice] per device, a [KFDPrivBO] per BO, then num_objects objects,
// each beginning with its type.
const (
	KFDPrivVersion = 1

	KFDPrivObjectQueue    = 0
	KFDPrivObjectEvent    = 1
	KFDPrivObjectSVMRange = 2

	KFDMaxGPUInstance = 64
)

// KFDPrivProcess is struct kfd_criu_process_priv_data.
type KFDPrivProcess struct {
	Version   uint32
	XNACKMode uint32
}

// KFDPrivDevice is struct kfd_criu_device_priv_data.
type KFDPrivDevice struct {
	Reserved uint64
}

// KFDPrivBO is struct kfd_criu_bo_priv_data.
type KFDPrivBO struct {
	UserAddr     uint64
	IDRHandle    uint32
	MappedGPUIDs [KFDMaxGPUInstance]uint32 // user_gpu_id, 0 ends the list
	Pad          uint32
}

// KFDPrivQueue is struct kfd_criu_queue_priv_data. The MQD (MQDSize bytes) and
// the control stack (CtlStackSize bytes) follow it.
type KFDPrivQueue struct {
	ObjectType            uint32
	Pad                   uint32
	QAddress              uint64
	QSize                 uint64
	ReadPtrAddr           uint64
	WritePtrAddr          uint64
	DoorbellOff           uint64
	EOPRingBufferAddress  uint64
	CtxSaveRestoreAddress uint64
	GPUID                 uint32
	Type                  uint32 // KFDPrivQueueType*
	Format                uint32
	QID                   uint32
	Priority              uint32
	QPercent              uint32
	DoorbellID            uint32
	GWS                   uint32
	SDMAID                uint32
	EOPRingBufferSize     uint32
	CtxSaveRestoreSize    uint32
	CtlStackSize          uint32
	MQDSize               uint32
	Pad2                  uint32
}

// Types and formats of a queue inside the KFD (enum kfd_queue_type and
// kfd_queue_format in kfd_priv.h), which differ from the KFD_IOC_QUEUE_TYPE_*
// of the interface: an AQL queue is a compute queue of format AQL. Kernels
// after 6.12 dropped DIQ and moved the XGMI type to 3; as no process owns a
// DIQ, both 3 and 4 read as a variant of SDMA.
const (
	KFDPrivQueueTypeCompute  = 0
	KFDPrivQueueTypeSDMA     = 1
	KFDPrivQueueTypeHIQ      = 2
	KFDPrivQueueTypeDIQ      = 3
	KFDPrivQueueTypeSDMAXGMI = 4

	KFDPrivQueueFormatPM4 = 0
	KFDPrivQueueFormatAQL = 1
)

// KFDPrivEvent is struct kfd_criu_event_priv_data.
type KFDPrivEvent struct {
	ObjectType uint32
	Pad        uint32
	UserHandle uint64
	EventID    uint32
	AutoReset  uint32
	Type       uint32
	Signaled   uint32
	Exception  KFDMemoryException
}

// KFDPrivSVMRange is struct kfd_criu_svm_range_priv_data. Four attributes, and
// one for each device of the process, follow it as [KFDSVMAttribute].
type KFDPrivSVMRange struct {
	ObjectType uint32
	Pad        uint32
	StartAddr  uint64
	Size       uint64
}

// KFDPrivSVMCommonAttrs is the number of attributes of an SVM range besides
// those of the devices.
const KFDPrivSVMCommonAttrs = 4

// Offsets for mmap on /dev/kfd (kfd_priv.h): the kind in bits 62–63, the GPU
// in bits 46–61, an offset below.
const (
	KFDMmapTypeShift   = 62
	KFDMmapTypeMask    = uint64(3) << KFDMmapTypeShift
	KFDMmapDoorbell    = uint64(3) << KFDMmapTypeShift
	KFDMmapEvents      = uint64(2) << KFDMmapTypeShift
	KFDMmapReservedMem = uint64(1) << KFDMmapTypeShift
	KFDMmapMMIO        = uint64(0) << KFDMmapTypeShift

	KFDMmapGPUIDShift = 46
	KFDMmapGPUIDMask  = uint64(0xffff) << KFDMmapGPUIDShift
)

// KFDMmapGPUID returns the GPU that an mmap offset on /dev/kfd names.
func KFDMmapGPUID(offset uint64) uint32 {
	return uint32(offset & KFDMmapGPUIDMask >> KFDMmapGPUIDShift)
}

// KFDMmapOffset returns the mmap offset on /dev/kfd of one of the KFDMmap*
// kinds on a GPU.
func KFDMmapOffset(kind uint64, gpuID uint32) uint64 {
	return kind&KFDMmapTypeMask | uint64(gpuID)<<KFDMmapGPUIDShift&KFDMmapGPUIDMask
}
