package freeze

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Awake is a process that runs although its GPU is away. A thread that touches memory which is not there waits until
// End.
type Awake struct {
	end   chan struct{}
	ended chan error
}

// Watch says whose system calls are told of while a process is awake: those of threads that Driver gives true
// for, from when they have computed for some time. The zero value tells of none.
type Watch struct {
	Driver func(tid int, name string) bool
	Calls  func() (Calls, error) // asked for when the first of these threads is found; no longer at an error
}

// Wake lets a stopped process run, all its threads traced. A thread that takes a SIGSEGV of the kernel's stands still
// until End, and makes the access again then: either the memory is there, or it takes the signal once more. This
// process must have no children: their ends would be taken for the threads'.
func Wake(pid int, w Watch) (*Awake, error) {
	a := &Awake{end: make(chan struct{}), ended: make(chan error, 1)}
	ready := make(chan error, 1)
	go func() {
		// The kernel's tracer is a thread. It ends with this goroutine, and with it the tracing.
		runtime.LockOSThread()
		t := waker{pid: pid, watch: w, names: map[int]string{}}
		err := t.start()
		ready <- err
		if err == nil {
			t.attend(a.end)
		}
		a.ended <- t.leave()
	}()
	if err := <-ready; err != nil {
		return nil, errors.Join(err, <-a.ended)
	}
	return a, nil
}

// End lets those who wait go on, and traces nobody any more.
func (a *Awake) End() error {
	close(a.end)
	return <-a.ended
}

// waker traces all threads of a process. It is used on one thread of this process.
type waker struct {
	pid   int
	tids  []int
	waits []int // those that stand still for a fault

	watch Watch
	names map[int]string // of threads
	calls Calls
	told  []int     // those whose system calls are told of
	last  time.Time // when there was one
	stops int       // for them
	look  time.Time // when it was looked who computes
}

func (t *waker) start() error {
	for {
		all, err := threads(t.pid)
		if err != nil {
			return err
		}
		fresh := slices.DeleteFunc(all, func(tid int) bool { return slices.Contains(t.tids, tid) })
		if len(fresh) == 0 {
			break
		}
		for _, tid := range fresh {
			if err := unix.PtraceSeize(tid); err != nil {
				return fmt.Errorf("trace thread %d of process %d: %w", tid, t.pid, err)
			}
			t.tids = append(t.tids, tid)
		}
		if err := standstill(t.pid, fresh, nil); err != nil {
			return err
		}
		for _, tid := range fresh {
			if err := unix.PtraceSetOptions(tid, options); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("trace thread %d of process %d: %w", tid, t.pid, err)
			}
		}
	}
	if err := Continue(t.pid); err != nil {
		return err
	}
	for _, tid := range t.tids {
		_ = unix.PtraceCont(tid, 0) // it may have been killed
	}
	return nil
}

const options = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACESYSGOOD

// glance is between two looks at threads that stop seldom.
const glance = 500 * time.Microsecond

// attend lets the threads have their signals but those that it waits with, until end is closed.
func (t *waker) attend(end <-chan struct{}) {
	for {
		for t.next() {
			continue
		}
		t.find()
		wait := glance
		if len(t.told) > 0 {
			wait = rest(true, t.last)
		}
		select {
		case <-end:
			return
		case <-time.After(wait):
		}
	}
}

// Who copies much memory is found by its processor time. What it did before is over then: hundreds of system calls,
// each of which would wait for the tracer.
const (
	findEvery = 20 * time.Millisecond
	findAfter = 200 * time.Millisecond
)

// maxStops is how often threads are stopped at their system calls. A call takes some 60 µs longer then.
const maxStops = 10000

// find looks whose system calls are to be told of.
func (t *waker) find() {
	if t.watch.Calls == nil || time.Since(t.look) < findEvery {
		return
	}
	t.look = time.Now()
	for _, tid := range t.tids {
		name, known := t.names[tid]
		if !known {
			name, _ = threadName(t.pid, tid)
			t.names[tid] = name
		}
		if !t.watch.Driver(tid, name) || slices.Contains(t.told, tid) || slices.Contains(t.waits, tid) ||
			computed(t.pid, tid) < findAfter {
			continue
		}
		if now, _ := threadName(t.pid, tid); now != name {
			delete(t.names, tid) // it was new, and has got another name
			continue
		}
		if t.calls == nil {
			var err error
			if t.calls, err = t.watch.Calls(); err != nil {
				t.forget()
				return
			}
		}
		t.told, t.last = append(t.told, tid), t.look
		_ = unix.PtraceInterrupt(tid) // it stops, and goes on until its next system call
	}
}

// forget ends the telling of system calls.
func (t *waker) forget() { t.told, t.watch.Calls = nil, nil }

// computed is how much processor time a thread has used; 0 if that is not known.
func computed(pid, tid int) time.Duration {
	const userTime, perSecond = 11, 100 // utime and stime of proc_pid_stat(5), counted from the state; USER_HZ
	f, err := fields(pid, tid)
	if err != nil || len(f) <= userTime+1 {
		return 0
	}
	user, _ := strconv.ParseInt(f[userTime], 10, 64)
	system, _ := strconv.ParseInt(f[userTime+1], 10, 64)
	return time.Duration(user+system) * time.Second / perSecond
}

// next takes one stop, or end, of a thread. False: there is none.
func (t *waker) next() bool {
	var s unix.WaitStatus
	tid, err := unix.Wait4(-1, &s, unix.WALL|unix.WNOHANG|unix.WNOTHREAD, nil)
	if errors.Is(err, unix.EINTR) {
		return true
	}
	if err != nil || tid <= 0 {
		return false
	}
	if !s.Stopped() {
		t.tids = slices.DeleteFunc(t.tids, func(x int) bool { return x == tid })
		delete(t.names, tid)
		return true
	}
	if !slices.Contains(t.tids, tid) {
		t.tids = append(t.tids, tid) // one that was made
	}
	if faulted(tid, s) {
		t.waits = append(t.waits, tid)
		return true
	}
	if s.StopSignal() == trapCall && slices.Contains(t.told, tid) {
		t.last = time.Now()
		if t.stops++; !t.calls.At(tid) || t.stops == maxStops {
			t.forget()
		}
	}
	if slices.Contains(t.told, tid) {
		_ = unix.PtraceSyscall(tid, signal(s))
	} else {
		_ = unix.PtraceCont(tid, signal(s)) // it may have been killed
	}
	return true
}

// faulted says whether a thread has stopped for an access of its own to what is not there.
func faulted(tid int, s unix.WaitStatus) bool { return signal(s) == int(unix.SIGSEGV) && ofKernel(tid) }

// ofKernel says whether the signal that a thread is stopped for comes from an access of its own: si_code of siginfo_t,
// asm-generic/siginfo.h, is above 0.
func ofKernel(tid int) bool {
	var info [128]byte
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GETSIGINFO, uintptr(tid), 0,
		uintptr(unsafe.Pointer(&info)), 0, 0)
	return errno == 0 && int32(binary.NativeEndian.Uint32(info[8:])) > 0
}

// leave traces nobody any more. The fault of those who wait is forgotten: they make the access again. All stand still
// before the first is let go, so that none makes a thread meanwhile that would stay traced.
func (t *waker) leave() error {
	var errs []error
	there := slices.Clone(t.waits)
	for {
		all, err := threads(t.pid)
		if err != nil {
			break // it has ended
		}
		fresh := slices.DeleteFunc(all, func(tid int) bool { return slices.Contains(there, tid) })
		if len(fresh) == 0 {
			break
		}
		if err := standstill(t.pid, fresh, faulted); err != nil {
			errs = append(errs, err)
		}
		there = append(there, fresh...)
	}
	return errors.Join(append(errs, detach(t.pid, there))...)
}
