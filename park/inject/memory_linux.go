//go:build amd64

package inject

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// NewHuge is a detour that has huge pages made of the memory that a thread maps and wants filled at once, by mmap with
// MAP_POPULATE. The kernel fills it with small pages, one after another, though it gives huge ones to who asks. The
// call is made without that flag, which is only a wish, and an madvise with MADV_HUGEPAGE follows it. It is refused
// where the kernel gives huge pages to nobody, or to all.
func NewHuge(pid int) (*Detour, error) {
	how, _ := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if !strings.Contains(string(how), "[madvise]") {
		return nil, refusal(pid, "huge pages are not for who asks")
	}
	return newDetour(pid, detourKind{true, fills, mapsHuge})
}

// fills tells a call that maps much private memory and has it filled at once.
func fills(_ int, r *unix.PtraceRegs) bool {
	const want = anonymous | unix.MAP_POPULATE
	return r.Orig_rax == unix.SYS_MMAP && r.Rsi >= largeCall && r.Rdx&unix.PROT_WRITE != 0 &&
		r.R10&(want|unix.MAP_FIXED|unix.MAP_HUGETLB) == want
}

func mapsHuge(at uint64, r *unix.PtraceRegs) Code {
	c := Code(detourMark)
	was := *r
	r.Rip, r.R10 = at+uint64(len(c)), r.R10&^unix.MAP_POPULATE
	c.Move(R15, RAX)
	c.invoke(unix.SYS_MADVISE, func() {
		c.Move(RDI, RAX) // an errno is the address of no page: the madvise fails
		c.Set(RSI, was.Rsi)
		c.Set(RDX, unix.MADV_HUGEPAGE)
	})
	c.Move(RAX, R15)
	back(&c, &was)
	return c
}

// NewLater is a detour that lets a thread go on at once which gives much memory back to the kernel by munmap. That can
// take more than half a second for some GB of small pages. The memory is moved away: its addresses are free as they
// would be. A thread that is made for it gives it back, piece by piece, with all signals blocked, and ends. A child
// that is forked meanwhile does not get the memory. Where a step fails, the thread gives the memory back itself. It is
// refused where a limit of memory holds for the process: the memory counts until it is given back.
func NewLater(pid int) (*Detour, error) {
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return nil, gone(pid, err)
	}
	for _, what := range []string{"Max address space", "Max data size"} {
		_, rest, _ := strings.Cut(string(limits), what)
		if f := strings.Fields(rest); len(f) == 0 || f[0] != "unlimited" {
			return nil, refusal(pid, "%s is limited", strings.ToLower(what))
		}
	}
	mode, err := os.ReadFile("/proc/sys/vm/overcommit_memory")
	if err != nil || strings.TrimSpace(string(mode)) == "2" {
		return nil, refusal(pid, "memory is not overcommitted")
	}
	return newDetour(pid, detourKind{false, givesBack, unmapsLater})
}

// GivingBack tells whether a thread in a process still gives memory back that a detour has moved away. It counts until
// then, and a dump of the process would have it.
func GivingBack(pid int) bool {
	tids, err := threadIDs(pid)
	return err == nil && slices.ContainsFunc(tids, func(tid int) bool {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/comm", pid, tid))
		return err == nil && string(name) == laterName+"\n"
	})
}

const (
	// laterPiece is what is given back by one call, in bytes. It takes some milliseconds.
	laterPiece = 16 << 20
	// laterName is the thread's, 15 bytes at most.
	laterName = "gpucr-release"
	// laterThread are the flags of clone for a thread.
	laterThread = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD |
		unix.CLONE_SYSVSEM
)

// givesBack tells a call by which much memory is given back: private memory of no file, in one mapping. The process may
// have as much once more.
func givesBack(pid int, r *unix.PtraceRegs) bool {
	addr, length := r.Rdi, pages(r.Rsi)
	if r.Orig_rax != unix.SYS_MUNMAP || length < largeCall || addr%pageSize != 0 {
		return false
	}
	all, err := Mappings(pid)
	return err == nil && slices.ContainsFunc(all, func(m Mapping) bool {
		return m.Start <= addr && addr < m.End && length <= m.End-addr &&
			m.Perms == "rw-p" && m.Path == "" && m.Inode == 0
	}) && spare(pid, length)
}

// spare says whether a process may have some memory more: until memory is given back, both counts in its cgroup and
// those above it.
func spare(pid int, bytes uint64) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		// NUMBER:CONTROLLERS:PATH, see cgroups(7). The second version has no controllers there.
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) < 3 {
			continue
		}
		root, limit, usage := "/sys/fs/cgroup", "memory.max", "memory.current"
		if f[1] != "" {
			if !slices.Contains(strings.Split(f[1], ","), "memory") {
				continue
			}
			root, limit, usage = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
		}
		for dir := filepath.Join("/", f[2]); ; dir = filepath.Dir(dir) {
			most, err1 := number(filepath.Join(root, dir, limit))
			used, err2 := number(filepath.Join(root, dir, usage))
			if err1 == nil && err2 == nil && (used > most || most-used < bytes) {
				return false
			}
			if dir == "/" {
				break
			}
		}
	}
	return true
}

// number reads a file of a cgroup that holds one. "max" is none.
func number(path string) (uint64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}

func unmapsLater(at uint64, r *unix.PtraceRegs) Code {
	addr, length := r.Rdi, pages(r.Rsi)
	c := Code(detourMark)
	allSignals := at + uint64(len(c))
	c.Bytes(0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	name := at + uint64(len(c))
	c.Bytes(append([]byte(laterName), make([]byte, 16-len(laterName))...)...)

	was := *r
	r.Rip = at + uint64(len(c))
	// A page to note the blocked signals in: R15. R14 holds the moved memory, R13 the result, R12 the thread.
	r.Orig_rax, r.Rdi, r.Rsi, r.Rdx = unix.SYS_MMAP, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE
	r.R10, r.R8, r.R9 = anonymous, noFD, 0

	memory := func() { c.Set(RDI, addr); c.Set(RSI, length) }
	unmapNote := func() {
		c.invoke(unix.SYS_MUNMAP, func() { c.Move(RDI, R15); c.Set(RSI, pageSize) })
	}
	signals := func(how uint64, set, old func()) {
		c.invoke(unix.SYS_RT_SIGPROCMASK, func() { c.Set(RDI, how); set(); old(); c.Set(R10, 8) })
	}
	signalsBack := func() {
		signals(unix.SIG_SETMASK, func() { c.Move(RSI, R15) }, func() { c.Set(RDX, 0) })
	}
	c.Move(R15, RAX)
	noNote := c.IfFailed(RAX)
	signals(unix.SIG_BLOCK, func() { c.Set(RSI, 0) }, func() { c.Move(RDX, R15) })
	notNoted := c.IfFailed(RAX)
	signals(unix.SIG_SETMASK, func() { c.Set(RSI, allSignals) }, func() { c.Set(RDX, 0) })
	c.invoke(unix.SYS_MADVISE, func() { memory(); c.Set(RDX, unix.MADV_DONTFORK) })
	inherited := c.IfFailed(RAX)
	c.invoke(unix.SYS_MREMAP, func() {
		memory()
		c.Set(RDX, length)
		c.Set(R10, unix.MREMAP_MAYMOVE|unix.MREMAP_DONTUNMAP)
		c.Set(R8, 0)
	})
	c.Move(R14, RAX)
	notMoved := c.IfFailed(RAX)
	c.invoke(unix.SYS_MUNMAP, memory) // nothing is there any more
	c.Move(R13, RAX)
	c.invoke(unix.SYS_CLONE, func() {
		c.Set(RDI, laterThread)
		for _, none := range []Register{RSI, RDX, R10, R8} {
			c.Set(none, 0)
		}
	})
	c.Move(R12, RAX)
	made := c.IfZero(RAX)
	signalsBack()
	unmapNote()
	alone := c.IfFailed(R12)
	c.Move(RAX, R13)
	back(&c, &was)
	c.Here(alone)
	c.invoke(unix.SYS_MUNMAP, func() { c.Move(RDI, R14); c.Set(RSI, length) })
	c.Move(RAX, R13)
	back(&c, &was)

	c.Here(inherited)
	c.Here(notMoved)
	signalsBack()
	c.Here(notNoted)
	unmapNote()
	c.Here(noNote)
	c.invoke(unix.SYS_MUNMAP, memory)
	back(&c, &was)

	c.Here(made)
	c.invoke(unix.SYS_PRCTL, func() { c.Set(RDI, unix.PR_SET_NAME); c.Set(RSI, name) })
	c.Set(R15, length/laterPiece)
	piece := len(c)
	c.invoke(unix.SYS_MUNMAP, func() { c.Move(RDI, R14); c.Set(RSI, laterPiece) })
	c.Set(RCX, laterPiece)
	c.Add(R14, RCX)
	c.Bytes(0x49, 0xff, 0xcf) // DEC r15
	c.Back(NotEqual, piece)
	if rest := length % laterPiece; rest > 0 {
		c.invoke(unix.SYS_MUNMAP, func() { c.Move(RDI, R14); c.Set(RSI, rest) })
	}
	c.invoke(unix.SYS_EXIT, func() { c.Set(RDI, 0) })
	return c
}
