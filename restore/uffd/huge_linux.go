package uffd

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

const (
	hugeSize     = 2 << 20
	madvHugepage = 14 // from asm-generic/mman-common.h; criu's bit for it
	madvCollapse = 25 // Linux 6.1
	// collapseStep is how much one call turns into huge pages: other users
	// of the memory wait meanwhile.
	collapseStep = 8 * hugeSize
)

// collapse gives a task the huge pages that it had asked for: UFFDIO_COPY fills
// memory by small ones, and khugepaged would take minutes to join them. The
// memory must be complete. What the kernel cannot collapse stays as it is.
func collapse(task *process, vmas []criuimg.VMA) (bytes uint64) {
	for _, v := range vmas {
		if v.Madvise&(1<<madvHugepage) == 0 {
			continue
		}
		start, end := (v.Start+hugeSize-1)&^(hugeSize-1), v.End&^(hugeSize-1)
		for ; start < end; start += collapseStep {
			n := min(end-start, collapseStep)
			switch processMadvise(task.pidfd, start, n, madvCollapse) {
			case 0:
				bytes += n
			case unix.ESRCH, unix.EPERM, unix.ENOSYS:
				return bytes
			}
		}
	}
	return bytes
}

func processMadvise(pidfd int, start, n uint64, advice uintptr) unix.Errno {
	iov := argRange{start, n} // struct iovec
	_, _, e := unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(pidfd), uintptr(unsafe.Pointer(&iov)), 1, advice, 0, 0)
	return e
}
