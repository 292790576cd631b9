//go:build amd64

package inject

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Detour makes something else of one system call that a thread makes by itself. The call is replaced when it begins,
// and the thread goes through instructions of ours on its way back. It is used on the thread of this process that
// traces the other one.
type Detour struct {
	// Step is as in Options.
	Step func(name string)

	pid    int
	kind   detourKind
	places []uint64
	made   int // how many calls were replaced
}

// detourKind is what becomes of which call.
type detourKind struct {
	once bool // no further call is replaced
	// at tells by a thread's registers that this call is to be replaced.
	at func(pid int, r *unix.PtraceRegs) bool
	// replace gives the instructions, which are to lie at an address, and changes the registers so that the thread
	// makes another call and comes to them.
	replace func(at uint64, r *unix.PtraceRegs) Code
}

// largeCall is from which length on a call that maps or unmaps memory is replaced, in bytes.
const largeCall = 64 << 20

// callRoom is left free behind the instructions of a detour, for those of a call by Task: a thread may be in a detour
// while they are used.
const callRoom = (callSize + 31) &^ 15

// detourSize is how many bytes the instructions of a detour take at most.
const detourSize = 1000

// detourMark is what the instructions of a detour begin with. They stay when the thread has gone through them.
const detourMark = "gpucr-detour-1\x00"

func newDetour(pid int, kind detourKind) (*Detour, error) {
	t := Task{PID: pid}
	all, err := Mappings(pid)
	if err != nil {
		return nil, gone(pid, err)
	}
	program, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	all = slices.DeleteFunc(all, func(m Mapping) bool { return !stays(m.Path, program) })
	d := &Detour{pid: pid, kind: kind, places: room(all, detourSize+callRoom, t.Read)}
	if len(d.places) == 0 {
		return nil, refusal(pid, "its code has no room for %d more bytes", detourSize)
	}
	return d, nil
}

// stays tells a file whose code a process has as long as it lives, and that a restored one has as it was dumped: not so
// a library that it may close, and the kernel's own code ([vdso]).
func stays(path, program string) bool {
	name := filepath.Base(path)
	return path == program || strings.HasPrefix(name, "libc.so") || strings.HasPrefix(name, "libc-2") ||
		strings.HasPrefix(name, "ld-") || strings.HasPrefix(name, "libcuda.so")
}

// At is told that a thread has stopped at the beginning or the end of a system call. It tells whether to ask again at
// the next stop. Where this process is killed meanwhile, the thread makes either its own call or all of what stands for
// it.
func (d *Detour) At(tid int) (more bool) {
	var r unix.PtraceRegs
	if !begins(tid) || unix.PtraceGetRegs(tid, &r) != nil || r.Cs != is64 || d.inside(r.Rip) ||
		!d.kind.at(d.pid, &r) {
		return true
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", d.pid, tid))
	if err != nil || !bearsDetour(string(status)) || dispatches(tid) {
		return false
	}
	at, ok := d.place()
	if !ok {
		return false
	}
	now := r
	code := d.kind.replace(at, &now)
	if len(code) > detourSize {
		return false
	}
	if _, err := unix.PtracePokeText(tid, uintptr(at), code); err != nil {
		return false
	}
	d.step("instructions written")
	if unix.PtraceSetRegs(tid, &now) == nil {
		d.made++
	}
	d.step("registers set")
	return !d.kind.once
}

func (d *Detour) step(name string) {
	if d.Step != nil {
		d.Step(name)
	}
}

// inside tells an address of the instructions of a detour.
func (d *Detour) inside(pc uint64) bool {
	return slices.ContainsFunc(d.places, func(at uint64) bool { return pc-at < detourSize })
}

// place gives one that is free: there is nothing, or a former detour that no thread is in any more.
func (d *Detour) place() (at uint64, ok bool) {
	t := Task{PID: d.pid}
	var left []uint64
	was := make([]byte, detourSize)
	for _, at := range d.places {
		switch err := t.Read(at, was); {
		case err != nil:
		case slices.Max(was) == 0:
			return at, true
		case bytes.HasPrefix(was, []byte(detourMark[:8])): // a kill may leave only the first 8 bytes
			left = append(left, at)
		}
	}
	if left = avoided(d.pid, left, detourSize); len(left) == 0 {
		return 0, false
	}
	return left[0], true
}

// bearsDetour says by its status whether a thread can make other calls than its own, and map memory that is not filled
// and locked at once.
func bearsDetour(status string) bool {
	return unbearable(status) == "" && strings.Contains(status, "\nVmLck:\t       0 kB\n")
}

// dispatches tells that the system calls of a thread, which stands still, are handed to its program (prctl(2),
// PR_SET_SYSCALL_USER_DISPATCH): struct ptrace_sud_config of linux/ptrace.h. Kernels before 6.4 do not tell.
func dispatches(tid int) bool {
	const getConfig = 0x4211 // PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG
	var config struct{ mode, selector, offset, length uint64 }
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, getConfig, uintptr(tid), unsafe.Sizeof(config),
		uintptr(unsafe.Pointer(&config)), 0, 0)
	return errno == 0 && config.mode != 0
}

// begins tells that a thread which has stopped for a system call is at its beginning and not at its end: op of struct
// ptrace_syscall_info, linux/ptrace.h.
func begins(tid int) bool {
	const getInfo, entry = 0x420e, 1 // PTRACE_GET_SYSCALL_INFO, PTRACE_SYSCALL_INFO_ENTRY
	var info [88]byte
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, getInfo, uintptr(tid), unsafe.Sizeof(info),
		uintptr(unsafe.Pointer(&info)), 0, 0)
	return errno == 0 && info[0] == entry
}

// invoke appends a system call whose arguments are set by what is given.
func (c *Code) invoke(nr uint64, set func()) {
	set()
	c.Set(RAX, nr)
	c.Syscall()
}

// back ends a detour: the thread has all registers as at the beginning of its call, and in RAX the result. No flag was
// changed.
func back(c *Code, r *unix.PtraceRegs) {
	for _, v := range []struct {
		into  Register
		value uint64
	}{
		{RCX, r.Rcx}, {RDX, r.Rdx}, {RSI, r.Rsi}, {RDI, r.Rdi}, {R8, r.R8}, {R9, r.R9}, {R10, r.R10}, {R11, r.R11},
		{R12, r.R12}, {R13, r.R13}, {R14, r.R14}, {R15, r.R15},
	} {
		c.Set(v.into, v.value)
	}
	c.Jump(r.Rip)
}
