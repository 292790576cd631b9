package uffd

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Guard pages (MADV_GUARD_INSTALL) are markers in the page table. No event tells of
// them, and UFFDIO_COPY writes over them, where UFFDIO_ZEROPAGE and UFFDIO_POISON
// refuse (TestGuardMarkers). Those of the images are no trouble: nothing has contents
// there. Those that a process installs over memory that is still missing have to be
// looked for before each copy: contents there are given up, as the kernel does.
//
// Not seen are guards that are installed between the look and the copy, some
// microseconds; guards that a forked child installs itself, as its /proc is not
// known; and guards that were installed and removed again before anything was to be
// copied there: the memory then has its old contents instead of zeros.

// Mirror of linux/fs.h, held to the header by TestABI where it knows them.
const (
	ioctlPagemapScan = 0xc0606610
	pageIsGuard      = 1 << 8 // Linux 6.16
)

// argScan is struct pm_scan_arg, pageRegion struct page_region.
type argScan struct {
	size, flags, start, end, walkEnd, vec, vecLen, maxPages uint64
	inverted, mask, anyOf, ret                              uint64
}

type pageRegion struct{ start, end, categories uint64 }

// scans are what one question takes; the kernel writes the answer where vec says, so
// they may not be on a stack that moves.
var scans = sync.Pool{New: func() any { return new(scan) }}

type scan struct {
	arg argScan
	ans pageRegion
}

// pagemap tells of the guard pages of one process: nil of none.
type pagemap struct{ fd int }

// openPagemap returns nil without an error when nothing can be told: the kernel is older, or does not let this process
// look, or the task is gone. Another error says that there may be guard pages.
func openPagemap(p *process) (*pagemap, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/pagemap", p.pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		m := &pagemap{fd}
		// The pid is the task's as long as the task is there.
		_, _, errno := m.guard(pageSize, 2*pageSize)
		if errno == 0 && !p.ended() {
			return m, nil
		}
		m.close()
		if err = errno; errno == 0 {
			return nil, nil
		}
	}
	switch err {
	case unix.ENOENT, unix.ESRCH, unix.ENOTTY, unix.EPERM, unix.EACCES, unix.ENOSYS, unix.EINVAL:
		return nil, nil
	}
	return nil, fmt.Errorf("look for guard pages: %w", err)
}

func (m *pagemap) close() {
	if m != nil {
		unix.Close(m.fd)
	}
}

// guard returns the first run of guard pages in [start, end), empty at end when
// there is none. With an error nothing is known.
func (m *pagemap) guard(start, end uint64) (from, to uint64, errno unix.Errno) {
	s := scans.Get().(*scan)
	defer scans.Put(s)
	s.arg = argScan{size: uint64(unsafe.Sizeof(s.arg)), start: start, end: end,
		vec: uint64(uintptr(unsafe.Pointer(&s.ans))), vecLen: 1,
		mask: pageIsGuard, ret: pageIsGuard}
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(m.fd), ioctlPagemapScan, uintptr(unsafe.Pointer(&s.arg)))
	if errno != 0 || n == 0 {
		return end, end, errno
	}
	return s.ans.start, s.ans.end, 0
}

// unguarded returns how many of n bytes from addr on are in front of the first guard
// page and, when that is none of them, how many are guarded. With an error neither is
// known; EAGAIN says that asking again may tell.
func (m *pagemap) unguarded(addr uint64, n int64) (free, guarded int64, errno unix.Errno) {
	if m == nil {
		return n, 0, 0
	}
	from, to, errno := m.guard(addr, addr+uint64(n))
	switch {
	case errno == unix.EINTR:
		return 0, 0, unix.EAGAIN
	case errno != 0:
		return 0, 0, errno
	case from > addr:
		return int64(from - addr), 0, 0
	}
	return 0, int64(to - addr), 0
}
