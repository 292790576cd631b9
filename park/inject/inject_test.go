//go:build amd64

package inject

import (
	"bufio"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

var rounds = flag.Int("inject.rounds", 40, "how often a process is stopped and makes calls")

// killAt tells a child of this test to inject, and to end itself at the step of that number.
const killAt = "INJECT_TEST_KILL_AT"

// The programs of src that are injected into.
var subject, mapping string

func TestMain(m *testing.M) {
	if at := os.Getenv(killAt); at != "" {
		os.Exit(tracer(at))
	}
	dir, err := os.MkdirTemp("", "inject-")
	if err == nil {
		subject, mapping = filepath.Join(dir, "subject"), filepath.Join(dir, "mapper")
		err = errors.Join(compile(subject, "src/subject.c"), compile(mapping, "src/mapper.c"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func compile(program, source string) error {
	out, err := exec.Command("cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program,
		source).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s; apt-get install gcc libc6-dev", err, out)
	}
	return nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// process is a subject that runs.
type process struct {
	t     *testing.T
	pid   int
	path  string
	ended chan struct{}
}

const (
	threads = 6
	timeout = time.Minute
)

// start runs a subject whose first thread is of a kind. more are further arguments of its.
func start(t *testing.T, first int, more ...string) *process {
	t.Helper()
	return launch(t, subject, append([]string{strconv.Itoa(first)}, more...)...)
}

// launch runs a program, whose first argument is the file that it counts in, until the test ends.
func launch(t *testing.T, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, path: filepath.Join(t.TempDir(), "rounds"), ended: make(chan struct{})}
	must(t, os.WriteFile(p.path, make([]byte, 4096), 0o600))
	// A shell is the parent: whoever waits for a child is told of the stops of one that this process traces.
	cmd := exec.Command("sh", append([]string{"-c", `"$0" "$@" & wait $!`, program, p.path}, args...)...)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, _ := bufio.NewReader(out).ReadString('\n')
	go func() { cmd.Wait(); close(p.ended) }()
	if _, err := fmt.Sscanf(line, "ready %d", &p.pid); err != nil {
		t.Fatalf("%s says %q", filepath.Base(program), line)
	}
	t.Cleanup(func() { syscall.Kill(p.pid, syscall.SIGKILL); <-p.ended })
	return p
}

// counts gives how many rounds each thread has made, and what one has found wrong.
func (p *process) counts() (n [threads]uint64) {
	p.t.Helper()
	text, err := os.ReadFile(p.path)
	must(p.t, err)
	for i := range n {
		n[i] = binary.LittleEndian.Uint64(text[8*i:])
	}
	if said := strings.TrimRight(string(text[64:264]), "\x00"); said != "" {
		p.t.Fatalf("the subject found %s", said)
	}
	return n
}

// goesOn waits until every thread has made further rounds.
func (p *process) goesOn() {
	p.t.Helper()
	before := p.counts()
	for end := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		now, all := p.counts(), true
		for i := range now {
			all = all && now[i] > before[i]+2
		}
		if all {
			return
		}
		select {
		case <-p.ended:
			p.counts()
			p.t.Fatal("the subject has ended")
		default:
		}
		if time.Now().After(end) {
			p.t.Fatalf("a thread stands still: %v, then %v", before, now)
		}
	}
}

// work makes calls of several kinds in a stopped process, and checks their results.
func work(task *Task) error {
	pid, err := task.Call(unix.SYS_GETPID)
	if err != nil || pid != uint64(task.PID) {
		return fmt.Errorf("getpid gives %d, %w", pid, err)
	}
	if _, err := task.Call(unix.SYS_CLOSE, 1<<20); !errors.Is(err, unix.EBADF) {
		return fmt.Errorf("close of no descriptor: %w", err)
	}
	const length = 1 << 16
	at, err := task.Call(unix.SYS_MMAP, 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS,
		^uint64(0), 0)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	if _, err := task.Call(unix.SYS_MUNMAP, at, length); err != nil {
		return fmt.Errorf("munmap: %w", err)
	}
	return nil
}

// Every thread goes on as if nothing had been, whatever it was at, and whatever the first thread was at, which makes
// the calls.
func TestCalls(t *testing.T) {
	for first, name := range []string{"registers and signals", "nanosleep", "read", "poll", "futex", "calls"} {
		t.Run(name, func(t *testing.T) {
			p := start(t, first)
			before, err := Mappings(p.pid)
			must(t, err)
			for range *rounds {
				must(t, Stop(p.pid, Options{}, work))
				p.counts()
			}
			p.goesOn()
			after, err := Mappings(p.pid)
			must(t, err)
			if len(after) != len(before) {
				t.Errorf("it had %d mappings and has %d", len(before), len(after))
			}
		})
	}
}

// tracer is a child of this test that injects into process PID, and kills itself at step N of "PID N". It ends with 0
// when there are fewer steps.
func tracer(what string) int {
	var pid, at int
	var kind string
	if n, _ := fmt.Sscan(what, &pid, &at, &kind); n < 2 {
		return 2
	}
	n := 0
	o := Options{Step: func(string) {
		if n++; n == at {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}}
	err := error(nil)
	if makes := detourKinds[kind]; makes != nil {
		var d *Detour
		if d, err = makes(pid); err == nil {
			d.Step = o.Step
			err = detours(pid, last(pid), d)
		}
	} else if kind == "hold" {
		_, err = hold(pid, o) // whoever ends lets go
	} else if kind == "call" {
		n = -1 << 20
		err = Stop(pid, o, func(t *Task) error {
			n = 0 // steps of the call alone
			_, err := t.CallBy(t.Threads()-1, unix.SYS_GETPID)
			return err
		})
	} else {
		err = Stop(pid, o, work)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// killed has a child of this test do what tracer reads, and be killed at its step.
func killed(t *testing.T, pid, at int, kind string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %s", killAt, pid, at, kind))
	if out, err := cmd.CombinedOutput(); err == nil || cmd.ProcessState.ExitCode() >= 0 {
		t.Fatalf("it was not killed at step %d: %v: %s", at, err, out)
	}
}

// The injecting process is killed at each of its steps in turn: the process goes on.
func TestKilledAtEveryStep(t *testing.T) {
	for _, first := range []int{0, 1, 2, 4} {
		t.Run(strconv.Itoa(first), func(t *testing.T) {
			p := start(t, first)
			p.killedAtEveryStep("", 20)
			must(t, Stop(p.pid, Options{}, work))
			p.goesOn()
		})
	}
}

// A process that was stopped by a signal stays so, and goes on when it is told to.
func TestStopped(t *testing.T) {
	p := start(t, 2)
	must(t, syscall.Kill(p.pid, syscall.SIGSTOP))
	state := func() string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
		must(t, err)
		_, rest, _ := strings.Cut(string(text), ") ")
		return rest[:1]
	}
	until(t, func() bool { return state() == "T" })
	must(t, Stop(p.pid, Options{}, work))
	until(t, func() bool { return state() == "T" })
	must(t, syscall.Kill(p.pid, syscall.SIGCONT))
	p.goesOn()
}

// until waits for a condition.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(timeout); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come about")
		}
	}
}

func TestRefused(t *testing.T) {
	cmd := exec.Command("true")
	must(t, cmd.Run())
	if err := Stop(cmd.Process.Pid, Options{}, work); !errors.Is(err, ErrGone) {
		t.Errorf("a process that has ended: %v", err)
	}
	p := start(t, 2)
	failed := errors.New("failed")
	if err := Stop(p.pid, Options{}, func(*Task) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("an error of the caller's: %v", err)
	}
	if err := Stop(p.pid, Options{}, func(*Task) error { return Stop(p.pid, Options{}, work) }); err == nil ||
		!strings.Contains(err.Error(), "traces it") {
		t.Errorf("a process that is traced: %v", err)
	}
	p.goesOn()
}

// A thread with a seccomp filter could be killed for a call that is not its own, and its process with it.
func TestFilteredThread(t *testing.T) {
	for _, who := range []string{"2", "4"} { // the first thread, and another one
		p := start(t, 2, who)
		p.goesOn()
		if err := Stop(p.pid, Options{}, work); err == nil || !strings.Contains(err.Error(), "seccomp filter") {
			t.Errorf("thread %s has a filter: %v", who, err)
		}
		p.goesOn()
	}
}

// A process that is killed meanwhile is gone, and nobody waits for it.
func TestKilledProcess(t *testing.T) {
	p := start(t, 2)
	err := Stop(p.pid, Options{}, func(task *Task) error {
		must(t, syscall.Kill(p.pid, syscall.SIGKILL))
		for {
			if err := work(task); err != nil {
				return err
			}
		}
	})
	if !errors.Is(err, ErrGone) {
		t.Errorf("it says %v", err)
	}
}

func FuzzRoom(f *testing.F) {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		f.Fatal(err)
	}
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text), exe[:1024])
	f.Add("1000-2000 r-xp 00000000 00:00 0 /a\n", exe[:1024])
	f.Fuzz(func(t *testing.T, text string, memory []byte) {
		var all []Mapping
		for line := range strings.Lines(text) {
			if m, ok := parseMapping(strings.TrimSuffix(line, "\n")); ok {
				all = append(all, m)
			}
		}
		read := func(at uint64, into []byte) error {
			if len(into) > 1<<20 {
				t.Errorf("%d bytes are read", len(into))
			}
			copy(into, memory[min(at&0xfff, uint64(len(memory))):])
			return nil
		}
		for _, at := range room(all, callSize, read) {
			fits := false
			for _, m := range all {
				fits = fits || m.Perms == "r-xp" && m.Start <= at && at+callSize <= m.End
			}
			if !fits {
				t.Errorf("%x is in no mapping of code", at)
			}
		}
	})
}

// A thread that could not be taken back in time comes back by itself, through the instructions that are left for it.
func TestLate(t *testing.T) {
	p := start(t, 2)
	err := Stop(p.pid, Options{Limit: timeout}, func(task *Task) error {
		task.o.Step = func(name string) {
			if name == "registers set" {
				task.end = time.Time{}
			}
		}
		for {
			if err := work(task); err != nil {
				return err
			}
		}
	})
	if err == nil || !strings.Contains(err.Error(), "does not stop") {
		t.Errorf("it says %v", err)
	}
	p.goesOn()
	must(t, Stop(p.pid, Options{}, work))
	p.goesOn()
}

// killedAtEveryStep has another process inject, or do what is named, and be killed at its first step, the second and so
// on, until it comes to its end. There are least steps or more.
func (p *process) killedAtEveryStep(what string, least int) {
	p.t.Helper()
	for at := 1; ; at++ {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), strings.TrimRight(fmt.Sprintf("%s=%d %d %s", killAt, p.pid, at, what), " "))
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if errors.As(err, &exit) && !exit.Sys().(syscall.WaitStatus).Signaled() {
			p.t.Fatalf("step %d: %v: %s", at, err, out)
		}
		p.goesOn()
		if err == nil {
			if at < least {
				p.t.Errorf("%d steps only", at)
			}
			return
		}
	}
}
