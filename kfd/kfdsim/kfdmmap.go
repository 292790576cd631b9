package kfdsim

// Kinds of offsets for mmap on /dev/kfd. The driver has the kind in bits 62–63
// (abi.KFDMmap*); offsets of a FUSE file end at 1<<63, so here it is one bit
// lower and a gpu id has 15 bits. A FUSE passthrough mapping does not tell the
// simulator who maps, so pages that the driver would choose by process have
// the process's slot in the offset too.
const (
	mmapMMIO     = 0
	mmapEvents   = 2
	mmapDoorbell = 3

	mmapTypeShift = 61
	mmapGPUShift  = 46
	mmapSlotShift = 16
)

// doorbellSlice is what one process has on one GPU: 1024 doorbells of 8 bytes,
// as since GFX9.
const doorbellSlice = 8192

// eventPageSize is one slot of 8 bytes for each signal event.
const eventPageSize = 4096 * 8

func mmapOffset(kind, gpuID uint32, slot int) uint64 {
	return uint64(kind)<<mmapTypeShift | uint64(gpuID)<<mmapGPUShift | uint64(slot)<<mmapSlotShift
}
