package touch

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

func addressOf(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&mem[0]))) }

// mincore tells, a byte for each page, which are resident.
func mincore(mem, vec []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mem[0])), uintptr(len(mem)),
		uintptr(unsafe.Pointer(&vec[0])))
	if errno != 0 {
		return errno
	}
	return nil
}
