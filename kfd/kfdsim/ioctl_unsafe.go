package kfdsim

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// identify asks the simulator, through its own mount, which open file a
// descriptor is. The request is 0x80087e01 with a u64 result (kfdsim.h).
func identify(fd int) (uint64, error) {
	var id uint64
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(iocIdentify), uintptr(unsafe.Pointer(&id)))
	if errno != 0 {
		return 0, errno
	}
	return id, nil
}

// loadWord and storeWord read and write memory shared with an application in
// one piece. off is a multiple of 8.
func loadWord(mem []byte, off uint64) uint64 {
	_ = mem[off+7]
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&mem[off])))
}

func storeWord(mem []byte, off, v uint64) {
	_ = mem[off+7]
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&mem[off])), v)
}
