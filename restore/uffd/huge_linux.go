package uffd

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

const (
	hugeSize     = 2 << 20
	madvHugepage = 14 // from asm-generic/mman-common.h; criu's bit for it
	madvCollapse = 25 // Linux 6.1
	// collapseRest is how much longer than a step the pause after it is.
	collapseRest = 4
)

// Collapse gives the tasks the huge pages that they had asked for: UFFDIO_COPY fills memory by small ones, and
// khugepaged would take hours to join them. It is to be called after Serve, and stops when ctx ends. Each huge page is
// new memory and a copy, during which faults of the process wait. So Collapse works one by one, with pauses, and takes
// at most a fifth of a processor. All at once, a gigabyte held the process up for 0.5 to 3 s.
//
// In processes with NVIDIA's driver large mappings are left to khugepaged: one may hold what was VRAM, which the driver
// reads and gives back.
func (s *Server) Collapse(ctx context.Context) {
	s.mu.Lock()
	whole := s.whole
	s.whole = nil
	s.mu.Unlock()
	for _, m := range whole {
		vmas := slices.DeleteFunc(slices.Clone(m.vmas), func(v criuimg.VMA) bool {
			return v.Madvise&(1<<madvHugepage) == 0
		})
		if len(vmas) > 0 && hasDriver(m.task.pid) {
			vmas = slices.DeleteFunc(vmas, func(v criuimg.VMA) bool { return v.End-v.Start >= driverMemory })
		}
		if !s.collapse(ctx, m.task, vmas) {
			return
		}
	}
}

// driverMemory is from which size on a mapping may be the driver's: gpucr-cuda has it ask for huge pages from there on,
// see package inject.
const driverMemory = 64 << 20

// hasDriver says whether a process has NVIDIA's driver loaded.
func hasDriver(pid int) bool {
	maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	return strings.Contains(string(maps), "/libcuda.so")
}

// collapse does it for one task. What the kernel cannot collapse stays as it is.
func (s *Server) collapse(ctx context.Context, task *process, vmas []criuimg.VMA) (more bool) {
	for _, v := range vmas {
		start, end := (v.Start+hugeSize-1)&^(hugeSize-1), v.End&^(hugeSize-1)
		for ; start < end; start += hugeSize {
			begun := time.Now()
			switch processMadvise(task.pidfd, start, hugeSize, madvCollapse) {
			case 0:
				s.stats.huge.Add(hugeSize)
			case unix.ESRCH:
				return true
			case unix.EPERM, unix.ENOSYS:
				return false
			}
			select {
			case <-time.After(collapseRest * time.Since(begun)):
			case <-ctx.Done():
				return false
			}
		}
	}
	return true
}

func processMadvise(pidfd int, start, n uint64, advice uintptr) unix.Errno {
	iov := argRange{start, n} // struct iovec
	_, _, e := unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(pidfd), uintptr(unsafe.Pointer(&iov)), 1, advice, 0, 0)
	return e
}
