package freeze

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// foreign is the file that CRIU maps into a process for the code that it lets a thread of it run.
const foreign = "/memfd:CRIUMFD"

// Expel brings the threads of a stopped process that CRIU left in code of its own back to where they were. That code
// goes back by itself when its CRIU has been killed, but not while the process stands still, and the driver's restore
// puts mappings over it. A SIGPIPE that it took for a write to CRIU is forgotten.
func Expel(pid int) error {
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the kernel's tracer is a thread
		ended <- (&tracer{pid: pid}).expel()
	}()
	return <-ended
}

func (t *tracer) expel() (err error) {
	code, err := foreignCode(t.pid)
	if err != nil || len(code) == 0 {
		return err
	}
	all, err := threads(t.pid)
	if err != nil {
		return err
	}
	for _, tid := range all {
		if !code.has(position(t.pid, tid)) {
			continue
		}
		if err := unix.PtraceSeize(tid); err != nil {
			return fmt.Errorf("trace thread %d of process %d: %w", tid, t.pid, err)
		}
		t.tids = append(t.tids, tid)
	}
	if len(t.tids) == 0 {
		return nil
	}
	err = standstill(t.pid, t.tids, nil)
	for _, tid := range t.tids {
		if err == nil {
			err = t.walk(tid, code)
		}
	}
	if serr := t.stop(); err == nil {
		err = serr
	}
	return err
}

// walk lets a thread that stands still run until it is out of CRIU's code, which ends with rt_sigreturn(2).
func (t *tracer) walk(tid int, code spans) error {
	if err := unix.PtraceSetOptions(tid, unix.PTRACE_O_TRACESYSGOOD); err != nil {
		return fmt.Errorf("trace thread %d of process %d: %w", tid, t.pid, err)
	}
	for end := time.Now().Add(limit); code.has(position(t.pid, tid)); {
		if time.Now().After(end) {
			return fmt.Errorf("thread %d of process %d does not leave criu's code", tid, t.pid)
		}
		if err := unix.PtraceSyscall(tid, 0); err != nil {
			return fmt.Errorf("let thread %d of process %d leave criu's code: %w", tid, t.pid, err)
		}
		if !await(tid, end) {
			return fmt.Errorf("thread %d of process %d does not leave criu's code", tid, t.pid)
		}
	}
	if brokenPipe(t.pid, tid) {
		_ = unix.PtraceCont(tid, 0) // to the signal, and no further
		_ = await(tid, time.Now().Add(limit))
	}
	_ = unix.PtraceInterrupt(tid)
	_ = unix.PtraceCont(tid, 0) // to that interrupt
	return nil
}

// await waits for a traced thread's next stop.
func await(tid int, end time.Time) bool {
	for {
		if _, ok := stop(tid); ok {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		time.Sleep(pause)
	}
}

// brokenPipe says whether a SIGPIPE of its own waits for a thread that does not block it. A thread that stood still has
// written to nobody by itself.
func brokenPipe(pid, tid int) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", pid, tid))
	set := func(name string) uint64 {
		_, rest, _ := strings.Cut(string(text), "\n"+name+":\t")
		line, _, _ := strings.Cut(rest, "\n")
		v, _ := strconv.ParseUint(line, 16, 64)
		return v
	}
	return set("SigPnd")&^set("SigBlk")&(1<<(unix.SIGPIPE-1)) != 0
}

// spans are ranges of addresses, each with its end behind it.
type spans [][2]uint64

func (s spans) has(addr uint64) bool {
	for _, r := range s {
		if addr >= r[0] && addr < r[1] {
			return true
		}
	}
	return false
}

// foreignCode gives the mappings of CRIU's code, of CRIUs killed earlier too.
func foreignCode(pid int) (code spans, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		at, rest, _ := strings.Cut(lines.Text(), " ")
		if !strings.Contains(rest, foreign) {
			continue
		}
		var r [2]uint64
		if _, err := fmt.Sscanf(at, "%x-%x", &r[0], &r[1]); err != nil {
			return nil, fmt.Errorf("mappings of process %d: %w", pid, err)
		}
		code = append(code, r)
	}
	return code, nil
}

// position is where a thread that does not run is in its program, see proc_pid_syscall(5); 0 where it cannot be told.
func position(pid, tid int) uint64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/syscall", pid, tid))
	f := strings.Fields(string(text))
	if len(f) < 3 {
		return 0
	}
	at, _ := strconv.ParseUint(strings.TrimPrefix(f[len(f)-1], "0x"), 16, 64)
	return at
}
