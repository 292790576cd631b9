package pidns

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/procfs"
)

// initName is what ps shows.
const initName = "gpucr-init"

// What init is told over its control socket, an order each, and answers with an errno, 0 when it is done.
const (
	tellPlace   = 1 // text is written to ns_last_pid
	tellRelease = 2 // root is the first restored process: live on without the command
)

// order is one message; orderHead are the bytes before its text.
type order struct {
	kind, root int32
	text       [24]byte
}

const orderHead = 8

// first is init's memory: it may not allocate.
type first struct {
	args    []byte // the command line
	name    [len(initName) + 1]byte
	fs      [len("proc") + 1]byte
	proc    [len("/proc") + 1]byte
	lastPID [len("/proc/sys/kernel/ns_last_pid") + 1]byte
	mask    uint64 // all signals
	polls   [2]unix.PollFd
	look    unix.Timespec
	order   order
	signal  struct { // struct signalfd_siginfo
		number uint32
		rest   [124]byte
	}
	status int32 // of wait4
	answer int32
}

// look is how often init looks whether somebody is left who is not its child, in nanoseconds.
const look = 20e6

func newFirst(control int) *first {
	f := &first{args: procfs.CommandLine(), mask: ^uint64(0)}
	copy(f.name[:], initName)
	copy(f.fs[:], "proc")
	copy(f.proc[:], "/proc")
	copy(f.lastPID[:], "/proc/sys/kernel/ns_last_pid")
	f.polls[0] = unix.PollFd{Fd: int32(control), Events: unix.POLLIN}
	f.polls[1] = unix.PollFd{Events: unix.POLLIN}
	return f
}

// forkInit returns twice like fork(2), but not in init. That one is a copy of a single thread of this process:
// it can use nothing of Go's runtime, not even a larger stack. The calling thread must have asked for a pid
// namespace for its children, and be in the mount namespace that goes with it.
//
//go:norace
//go:nosplit
func forkInit(k *first) (pid int, errno syscall.Errno) {
	before := uint64(0)
	runtime.LockOSThread()
	const signalSet = 8 // bytes
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK,
		uintptr(unsafe.Pointer(&k.mask)), uintptr(unsafe.Pointer(&before)), signalSet, 0, 0)
	r, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if r != 0 || errno != 0 {
		syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&before)), 0, 8, 0, 0)
		runtime.UnlockOSThread()
		return int(r), errno
	}
	// Signals stay blocked, so that they wait for the signalfd; none that this process's handlers would take
	// ever arrives.
	const control, rest = 0, 1
	syscall.RawSyscall(unix.SYS_DUP3, uintptr(k.polls[0].Fd), control, 0)
	syscall.RawSyscall(unix.SYS_CLOSE_RANGE, rest, uintptr(^uint32(0)), 0)
	k.polls[0].Fd = control
	syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NAME, uintptr(unsafe.Pointer(&k.name)), 0, 0, 0, 0)
	for i := range k.args {
		k.args[i] = 0
		if i < len(initName) {
			k.args[i] = k.name[i]
		}
	}
	_, _, e := syscall.RawSyscall6(unix.SYS_MOUNT,
		uintptr(unsafe.Pointer(&k.fs)), uintptr(unsafe.Pointer(&k.proc)), uintptr(unsafe.Pointer(&k.fs)),
		unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, 0, 0)
	signals, last := uintptr(0), uintptr(0)
	if e == 0 {
		signals, _, e = syscall.RawSyscall6(unix.SYS_SIGNALFD4, ^uintptr(0),
			uintptr(unsafe.Pointer(&k.mask)), signalSet, unix.SFD_NONBLOCK, 0, 0)
		k.polls[1].Fd = int32(signals)
	}
	if e == 0 {
		const here = ^uintptr(99) // AT_FDCWD
		last, _, e = syscall.RawSyscall6(unix.SYS_OPENAT, here,
			uintptr(unsafe.Pointer(&k.lastPID)), unix.O_WRONLY, 0, 0, 0)
	}
	// The directory that the command works in is not ours to keep busy.
	syscall.RawSyscall(unix.SYS_CHDIR, uintptr(unsafe.Pointer(&k.proc)), 0, 0)
	k.answer = int32(e)
	syscall.RawSyscall(unix.SYS_WRITE, control, uintptr(unsafe.Pointer(&k.answer)), 4)
	root, code, wait := int32(0), uintptr(1), false
	for e == 0 {
		k.look = unix.Timespec{Nsec: look} // the kernel counts it down
		timeout := uintptr(0)
		if wait {
			timeout = uintptr(unsafe.Pointer(&k.look))
		}
		syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&k.polls)), uintptr(len(k.polls)), timeout, 0, 0, 0)
		if k.polls[0].Revents != 0 {
			n, _, err := syscall.RawSyscall(unix.SYS_READ, control,
				uintptr(unsafe.Pointer(&k.order)), unsafe.Sizeof(k.order))
			switch {
			case (err != 0 || n < orderHead) && root == 0:
				e = unix.EPIPE // the command has ended
			case err != 0 || n < orderHead:
				k.polls[0].Fd = -1
			case k.order.kind == tellPlace:
				// Past its beginning the kernel takes nothing, and says nothing.
				_, _, err = syscall.RawSyscall6(unix.SYS_PWRITE64, last,
					uintptr(unsafe.Pointer(&k.order.text)), n-orderHead, 0, 0, 0)
			case k.order.kind == tellRelease:
				root = k.order.root
			}
			k.answer = int32(err)
			syscall.RawSyscall6(unix.SYS_SENDTO, control,
				uintptr(unsafe.Pointer(&k.answer)), 4, unix.MSG_NOSIGNAL, 0, 0)
		}
		if k.polls[1].Revents != 0 {
			n, _, err := syscall.RawSyscall(unix.SYS_READ, signals,
				uintptr(unsafe.Pointer(&k.signal)), unsafe.Sizeof(k.signal))
			if err == 0 && n != 0 && k.signal.number != uint32(unix.SIGCHLD) && root != 0 {
				syscall.RawSyscall(unix.SYS_KILL, uintptr(root), uintptr(k.signal.number), 0)
			}
		}
		// Before it knows whose status it is to end with it reaps nobody.
		for wait = false; root != 0; {
			who, _, err := syscall.RawSyscall6(unix.SYS_WAIT4, ^uintptr(0),
				uintptr(unsafe.Pointer(&k.status)), unix.WNOHANG|unix.WALL, 0, 0, 0)
			if err == 0 && who != 0 {
				if int32(who) == root {
					if code = uintptr(k.status>>8) & 0xff; k.status&0x7f != 0 {
						code = 128 + uintptr(k.status&0x7f)
					}
					root = -1 // signals are for all who are left
				}
				continue
			}
			if err == unix.ECHILD {
				// CRIU, or whoever came in from outside, may still be there, and is nobody's child here.
				wait = true
				if _, _, err := syscall.RawSyscall(unix.SYS_KILL, ^uintptr(0), 0, 0); err == unix.ESRCH {
					e = unix.ESRCH
				}
			}
			break
		}
	}
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, code, 0, 0)
	}
}
