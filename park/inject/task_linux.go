//go:build amd64

package inject

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Task is a process all of whose threads stand still. It lives for the time of a call of Stop, and only there, on one
// thread of this process, may it be used.
type Task struct {
	PID int

	o       Options
	end     time.Time
	threads []*thread
	all     []Mapping
	at      uint64 // where the instructions of a call are; 0: nowhere yet
	was     []byte // what is there otherwise
}

// thread is one that stands still.
type thread struct {
	tid  int
	raw  unix.PtraceRegs // as it was met
	regs unix.PtraceRegs // with which it goes on where it was: an interrupted call is made again
	away bool            // it is at the instructions of a call
}

// Stop stops all threads of a process, calls f, and lets them go on, whatever f returns. The process notices nothing
// but the time. It must be no child of this process for which somebody waits meanwhile: the kernel would tell that
// one of its stops.
func Stop(pid int, o Options, f func(*Task) error) error {
	if o.Limit == 0 {
		o.Limit = defaultLimit
	}
	if err := possible(pid); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		// The kernel's tracer is a thread. It ends with this goroutine: what could not be let go then is by the
		// kernel.
		runtime.LockOSThread()
		t := &Task{PID: pid, o: o, end: time.Now().Add(o.Limit)}
		err := t.stop()
		if err == nil {
			err = bears(pid) // nothing changes any more
		}
		if err == nil {
			err = f(t)
		}
		done <- errors.Join(err, t.release())
	}()
	return <-done
}

// possible looks for what Stop does not bear.
func possible(pid int) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return gone(pid, err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		switch {
		case name == "TracerPid" && value != "0":
			return refusal(pid, "process %s traces it", value)
		case name == "State" && (strings.HasPrefix(value, "Z") || strings.HasPrefix(value, "X")):
			return fmt.Errorf("process %d: %w", pid, ErrGone)
		}
	}
	return bears(pid)
}

func bears(pid int) error {
	why, err := Unbearable(pid)
	switch {
	case err != nil:
		return gone(pid, err)
	case why != "":
		return refusal(pid, "%s", why)
	}
	return nil
}

// Unbearable tells why a process could be harmed by system calls that it is made to do: "" if it could not. Seccomp
// filters and shadow stacks are a thread's own, so all threads are looked at. While they run they may still get some.
func Unbearable(pid int) (why string, err error) {
	tids, err := threadIDs(pid)
	if err != nil {
		return "", err
	}
	for _, tid := range tids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", pid, tid))
		if err != nil && !isGone(err) {
			return "", err
		}
		if why := unbearable(string(text)); why != "" {
			return why, nil
		}
	}
	return "", nil
}

// unbearable is Unbearable for one thread, by its status.
func unbearable(status string) (why string) {
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		switch {
		case name == "Seccomp" && value != "0":
			return "the process has a seccomp filter"
		case name == "x86_Thread_features" && strings.Contains(value, "shstk"):
			return "the process has a shadow stack"
		}
	}
	return ""
}

func gone(pid int, err error) error {
	if isGone(err) {
		return fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	return fmt.Errorf("inject into process %d: %w", pid, err)
}

func isGone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// stop seizes all threads. One that is not seized yet may make another: it is looked until there is none.
func (t *Task) stop() error {
	seen := map[int]bool{}
	for more := true; more; {
		more = false
		tids, err := threadIDs(t.PID)
		if err != nil {
			return gone(t.PID, err)
		}
		for _, tid := range tids {
			if seen[tid] {
				continue
			}
			seen[tid], more = true, true
			is, err := worker(t.PID, tid)
			if err != nil {
				return gone(t.PID, err)
			}
			if is {
				continue // it runs in the kernel alone, and waits for work there
			}
			if err := t.seize(tid); err != nil {
				return err
			}
		}
	}
	if len(t.threads) == 0 {
		return fmt.Errorf("process %d: %w", t.PID, ErrGone)
	}
	return nil
}

// seize stops one thread. One that has ended is left out.
func (t *Task) seize(tid int) error {
	if err := unix.PtraceSeize(tid); err != nil {
		if errors.Is(err, unix.ESRCH) || ended(t.PID, tid) {
			return nil
		}
		return refusal(t.PID, "seize thread %d: %v", tid, err)
	}
	t.o.step("seized")
	if err := unix.PtraceInterrupt(tid); err != nil && !errors.Is(err, unix.ESRCH) {
		return refusal(t.PID, "interrupt thread %d: %v", tid, err)
	}
	th := &thread{tid: tid}
	if err := t.standstill(th); err != nil {
		if errors.Is(err, ErrGone) {
			return nil
		}
		return err
	}
	t.threads = append(t.threads, th)
	t.o.step("stopped")
	return nil
}

// standstill waits until a thread that was interrupted stops for that, and learns where it is. Signals that come
// before go their way.
func (t *Task) standstill(th *thread) error {
	for {
		s, err := t.wait(th.tid)
		if err != nil {
			return err
		}
		if s.TrapCause() == unix.PTRACE_EVENT_STOP || int(s)>>16 == unix.PTRACE_EVENT_STOP {
			break
		}
		sig := int(s.StopSignal())
		if int(s)>>16 != 0 {
			sig = 0
		}
		if err := unix.PtraceCont(th.tid, sig); err != nil {
			return gone(t.PID, err)
		}
	}
	if err := unix.PtraceSetOptions(th.tid, unix.PTRACE_O_TRACESYSGOOD); err != nil {
		return gone(t.PID, err)
	}
	return t.look(th)
}

func threadIDs(pid int) (tids []int, err error) {
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, name := range names {
		if tid, err := strconv.Atoi(name.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids, err
}

// ended tells that a thread is gone, or a zombie.
func ended(pid, tid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", pid, tid))
	rest := string(text[strings.LastIndexByte(string(text), ')')+1:]) // the name may contain anything
	return isGone(err) || strings.HasPrefix(rest, " Z") || strings.HasPrefix(rest, " X")
}

// Workers tells whether a process has threads of io_uring's in the kernel. They end with its last ring, a little
// later. Where that cannot be seen it may have some.
func Workers(pid int) bool {
	tids, err := threadIDs(pid)
	if err != nil {
		return !isGone(err)
	}
	return slices.ContainsFunc(tids, func(tid int) bool {
		is, err := worker(pid, tid)
		return is || err != nil
	})
}

// worker tells a thread of io_uring's in the kernel: PF_IO_WORKER of linux/sched.h, the ninth field of
// proc_pid_stat(5). One that is gone is none.
func worker(pid, tid int) (bool, error) {
	const ioWorker = 0x10
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", pid, tid))
	if isGone(err) {
		return false, nil
	}
	f := strings.Fields(string(text[max(0, strings.LastIndexByte(string(text), ')')+1):]))
	if err != nil || len(f) < 7 {
		return false, err
	}
	flags, err := strconv.ParseUint(f[6], 10, 64)
	return flags&ioWorker != 0, err
}

const (
	poll       = 20 * time.Microsecond
	is64       = 0x33 // the code segment of 64-bit programs
	noCall     = ^uint64(0)
	trapSystem = unix.SIGTRAP | 0x80 // PTRACE_O_TRACESYSGOOD
	// Results that never leave the kernel, include/linux/errno.h.
	restartSys, restartNoIntr, restartNoHand, restartBlock = -512, -513, -514, -516
)

// wait gives a thread's next stop.
func (t *Task) wait(tid int) (unix.WaitStatus, error) {
	for try := 0; ; try++ {
		var s unix.WaitStatus
		got, err := unix.Wait4(tid, &s, unix.WALL|unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return s, fmt.Errorf("process %d: %w", t.PID, ErrGone) // ECHILD
		case got == tid && s.Stopped():
			return s, nil
		case got == tid:
			return s, fmt.Errorf("process %d: %w", t.PID, ErrGone)
		case time.Now().After(t.end):
			return s, refusal(t.PID, "thread %d does not stop; it may be in uninterruptible sleep", tid)
		case try > 50:
			time.Sleep(poll)
		}
	}
}

// look learns a thread's registers, and with which it goes on.
func (t *Task) look(th *thread) error {
	if err := unix.PtraceGetRegs(th.tid, &th.raw); err != nil {
		return gone(t.PID, err)
	}
	if th.raw.Cs != is64 {
		return refusal(t.PID, "thread %d runs 32-bit code", th.tid)
	}
	if dispatches(th.tid) {
		return refusal(t.PID, "thread %d has its system calls dispatched to the program", th.tid)
	}
	th.regs = th.raw
	r := &th.regs
	if int64(r.Orig_rax) >= 0 {
		switch int64(r.Rax) {
		case restartSys, restartNoIntr, restartNoHand:
			r.Rax, r.Rip = r.Orig_rax, r.Rip-2
		case restartBlock:
			r.Rax, r.Rip = unix.SYS_RESTART_SYSCALL, r.Rip-2
		}
	}
	r.Orig_rax = noCall
	return t.leaveSequence(th)
}

// away tells that a thread could not be taken back: the instructions bring it back, and have to stay.
func (t *Task) away() bool {
	return slices.ContainsFunc(t.threads, func(th *thread) bool { return th.away })
}

// release lets all threads go on.
func (t *Task) release() error {
	var errs []error
	for _, th := range t.threads {
		if t.at != 0 && th == t.threads[0] && !t.away() {
			errs = append(errs, t.put(t.at, t.was))
			t.o.step("bytes put back")
		}
		if err := unix.PtraceDetach(th.tid); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, refusal(t.PID, "let thread %d go: %v", th.tid, err))
		}
		t.o.step("let go")
	}
	t.threads = nil
	return errors.Join(errs...)
}

// Read reads the process's memory.
func (t *Task) Read(addr uint64, into []byte) error {
	for len(into) > 0 {
		n, err := unix.ProcessVMReadv(t.PID, []unix.Iovec{iovec(into)},
			[]unix.RemoteIovec{{Base: uintptr(addr), Len: len(into)}}, 0)
		if err != nil || n == 0 {
			return fmt.Errorf("read memory of process %d at %x: %w", t.PID, addr, errors.Join(err, unix.EFAULT))
		}
		into, addr = into[n:], addr+uint64(n)
	}
	return nil
}

func iovec(b []byte) unix.Iovec {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return v
}

// put writes memory of the process, that it cannot write itself too.
func (t *Task) put(addr uint64, b []byte) error {
	if len(t.threads) == 0 {
		return fmt.Errorf("process %d: %w", t.PID, ErrGone)
	}
	if _, err := unix.PtracePokeText(t.threads[0].tid, uintptr(addr), b); err != nil {
		return gone(t.PID, err)
	}
	return nil
}
