package freeze

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// limit is how long threads may take to stand still.
const limit = 5 * time.Second

// pause is between two looks.
const pause = 100 * time.Microsecond

// patiently makes a look at a process until it does not fail for want of descriptors or memory, up to limit: one that
// fails so has told nothing, not that the process has ended.
func patiently[T any](look func() (T, error)) (got T, err error) {
	for end := time.Now().Add(limit); ; time.Sleep(pause) {
		got, err = look()
		lacks := errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
		if !lacks || time.Now().After(end) {
			return got, err
		}
	}
}

func read(path string) ([]byte, error) {
	return patiently(func() ([]byte, error) { return os.ReadFile(path) })
}

// gone tells that an error of a file in a process's folder says that the process has ended.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// Stop stops a process, as SIGSTOP does, and waits until all its threads are.
func Stop(pid int) error {
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return fmt.Errorf("stop process %d: %w", pid, err)
	}
	if !settled(pid) {
		return fmt.Errorf("process %d does not stop", pid)
	}
	return nil
}

// settled waits until all threads are stopped.
func settled(pid int) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(pause) {
		if Stopped(pid) {
			return true
		}
		if _, err := threads(pid); err != nil {
			return false
		}
	}
	return false
}

// Stands says whether a process is stopped or about to be: it waits then until all its threads are. A process that CRIU
// has just restored may still have its SIGSTOP before it. The kernel stops the process before it removes the signal
// from the pending ones, so the signal is looked for first.
func Stands(pid int) bool {
	return Stopping(pid) && settled(pid)
}

// Stopping says whether a process is stopped or about to be, and does not wait.
func Stopping(pid int) bool {
	if pendingStop(pid) {
		return true
	}
	tids, _ := threads(pid)
	return slices.ContainsFunc(tids, func(tid int) bool { return state(pid, tid) == "T" })
}

// pendingStop says whether a SIGSTOP waits for a process.
func pendingStop(pid int) bool {
	text, _ := read(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(text), "\nShdPnd:\t")
	line, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(line, 16, 64)
	return err == nil && set&(1<<(unix.SIGSTOP-1)) != 0
}

// Continue lets a stopped process go on.
func Continue(pid int) error {
	if err := unix.Kill(pid, unix.SIGCONT); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("continue process %d: %w", pid, err)
	}
	return nil
}

// Stopped says whether a process is stopped, all its threads. One that is gone is not.
func Stopped(pid int) bool {
	tids, err := threads(pid)
	for _, tid := range tids {
		if !strings.Contains("TZX", state(pid, tid)) {
			return false
		}
	}
	return err == nil
}

// state gives a thread's, a letter of proc_pid_stat(5); "X" where it has ended, "?" where that is not known.
func state(pid, tid int) string {
	f, err := fields(pid, tid)
	switch {
	case err != nil && !gone(err):
		return "?"
	case err != nil || len(f) == 0:
		return "X"
	}
	return f[0]
}

// fields gives those of a thread's line of proc_pid_stat(5), from its state on. The name in parentheses before may
// contain anything.
func fields(pid, tid int) ([]string, error) {
	stat, err := read(fmt.Sprintf("/proc/%d/task/%d/stat", pid, tid))
	return strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:])), err
}

// Traced says whether somebody traces a process: it is theirs to stop then.
func Traced(pid int) bool {
	text, _ := read(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, ok := strings.Cut(string(text), "\nTracerPid:\t")
	return ok && !strings.HasPrefix(rest, "0\n")
}

// ContinueAll continues those of some processes that are stopped.
func ContinueAll(pids []int) error {
	var errs []error
	for _, pid := range pids {
		if Stands(pid) {
			errs = append(errs, Continue(pid))
		}
	}
	return errors.Join(errs...)
}

func threads(pid int) ([]int, error) {
	names, err := patiently(func() ([]os.DirEntry, error) { return os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)) })
	if gone(err) || err == nil && len(names) == 0 {
		err = fmt.Errorf("process %d has ended", pid)
	}
	var tids []int
	for _, name := range names {
		if tid, err := strconv.Atoi(name.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids, err
}

// threadName gives a thread's, as in its comm file.
func threadName(pid, tid int) (string, error) {
	text, err := read(fmt.Sprintf("/proc/%d/task/%d/comm", pid, tid))
	return strings.TrimSpace(string(text)), err
}

// Running are threads of a stopped process that run all the same.
type Running struct {
	end   chan struct{}
	ended chan error
}

// Calls is told of system calls that threads make. It is used on the thread of this process that traces them.
type Calls interface {
	// At is told that a thread has stopped at the beginning or the end of a system call. It tells whether to stop it
	// at the next one.
	At(tid int) (more bool)
}

// tellTime is how long Run tells of system calls. Each one waits for the tracer.
const tellTime = 5 * time.Second

// Run lets those threads of a stopped process run for which wanted gives true. name is the thread's, as in its comm
// file. calls, nil for none, is told of their system calls. End is called once.
func Run(pid int, calls Calls, wanted func(tid int, name string) bool) (*Running, error) {
	r := &Running{end: make(chan struct{}), ended: make(chan error, 1)}
	ready := make(chan error, 1)
	go func() {
		// The kernel's tracer is a thread. It ends with this goroutine, and the threads are back in their stop.
		runtime.LockOSThread()
		t := tracer{pid: pid, calls: calls}
		err := t.start(wanted)
		ready <- err
		if err == nil {
			t.attend(r.end)
		}
		r.ended <- t.stop()
	}()
	if err := <-ready; err != nil {
		return nil, errors.Join(err, <-r.ended)
	}
	return r, nil
}

// End brings the threads back into the stop, and waits until they are there.
func (r *Running) End() error {
	close(r.end)
	return <-r.ended
}

// tracer traces the threads that run. It is used on one thread of this process.
type tracer struct {
	pid   int
	tids  []int
	calls Calls // nil: none, or not any more
}

func (t *tracer) start(wanted func(int, string) bool) error {
	all, err := threads(t.pid)
	if err != nil {
		return err
	}
	for _, tid := range all {
		name, err := threadName(t.pid, tid)
		if err != nil || !wanted(tid, name) {
			continue
		}
		if err := unix.PtraceSeize(tid); err != nil {
			return fmt.Errorf("trace thread %d of process %d: %w", tid, t.pid, err)
		}
		t.tids = append(t.tids, tid)
	}
	if err := standstill(t.pid, t.tids, nil); err != nil {
		return err
	}
	for _, tid := range t.tids {
		if t.calls == nil {
			break
		}
		if unix.PtraceSetOptions(tid, unix.PTRACE_O_TRACESYSGOOD) != nil {
			t.calls = nil
		}
	}
	for _, tid := range t.tids {
		if err := t.resume(tid, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("let thread %d of process %d run: %w", tid, t.pid, err)
		}
	}
	return nil
}

// resume lets a thread run on, until its next system call while these are told of.
func (t *tracer) resume(tid, signal int) error {
	if t.calls != nil {
		return unix.PtraceSyscall(tid, signal)
	}
	return unix.PtraceCont(tid, signal)
}

// attend lets signals reach the threads until end is closed.
func (t *tracer) attend(end <-chan struct{}) {
	var last time.Time
	for begun := time.Now(); ; {
		if time.Since(begun) > tellTime {
			t.calls = nil
		}
		for _, tid := range t.tids {
			s, ok := stop(tid)
			if !ok {
				continue
			}
			if s.StopSignal() == trapCall {
				last = time.Now()
				if t.calls != nil && !t.calls.At(tid) {
					t.calls = nil
				}
			}
			_ = t.resume(tid, signal(s)) // it may have been killed
		}
		select {
		case <-end:
			return
		case <-time.After(rest(t.calls != nil, last)):
		}
	}
}

// rest is the time between two looks at threads. A thread that is stopped at its system calls waits for each look, so
// there is none while they come one after another.
func rest(calls bool, last time.Time) time.Duration {
	if calls && time.Since(last) < burst {
		return 0
	}
	return pause
}

// burst is how long after a system call another one is waited for without a rest.
const burst = 20 * time.Millisecond

// stop brings all threads back into the stop of their process.
func (t *tracer) stop() error {
	errs := []error{standstill(t.pid, t.tids, nil), detach(t.pid, t.tids)}
	if _, err := threads(t.pid); err == nil && !settled(t.pid) {
		errs = append(errs, fmt.Errorf("process %d does not stop again", t.pid))
	}
	return errors.Join(errs...)
}

// detach ends the tracing of threads that stand still. What they stopped for is forgotten.
func detach(pid int, tids []int) error {
	var errs []error
	for _, tid := range tids {
		if err := unix.PtraceDetach(tid); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("let thread %d of process %d go: %w", tid, pid, err))
		}
	}
	return errors.Join(errs...)
}

// standstill interrupts traced threads, all at once. Signals that come before go their way, but for one that stays
// tells true for: the thread stands still with it.
func standstill(pid int, tids []int, stays func(tid int, s unix.WaitStatus) bool) error {
	for _, tid := range tids {
		_ = unix.PtraceInterrupt(tid) // it may have ended
	}
	for _, tid := range tids {
		if err := stands(pid, tid, stays); err != nil {
			return err
		}
	}
	return nil
}

// stands waits until a thread that was interrupted stands still, or has ended.
func stands(pid, tid int, stays func(tid int, s unix.WaitStatus) bool) error {
	for end := time.Now().Add(limit); ; {
		s, ok := stop(tid)
		switch {
		case ok && (int(s)>>16 == unix.PTRACE_EVENT_STOP || stays != nil && stays(tid, s)):
			return nil
		case ok:
			_ = unix.PtraceInterrupt(tid) // each stop takes an earlier interrupt along
			_ = unix.PtraceCont(tid, signal(s))
			continue
		case strings.Contains("ZX", state(pid, tid)):
			return nil
		case time.Now().After(end):
			return fmt.Errorf("thread %d of process %d does not stop", tid, pid)
		}
		time.Sleep(pause)
	}
}

// stop gives the stop that a traced thread is in, if it has come to one.
func stop(tid int) (s unix.WaitStatus, ok bool) {
	got, err := unix.Wait4(tid, &s, unix.WALL|unix.WNOHANG, nil)
	return s, err == nil && got == tid && s.Stopped()
}

// trapCall is what a thread stops with at the beginning and the end of a system call, with PTRACE_O_TRACESYSGOOD.
const trapCall = unix.SIGTRAP | 0x80

// signal gives the one that a thread goes on with.
func signal(s unix.WaitStatus) int {
	if int(s)>>16 != 0 || s.StopSignal() == trapCall {
		return 0 // an event of the tracing, no signal
	}
	return int(s.StopSignal())
}
