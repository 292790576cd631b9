package freeze

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// churnVar makes this program one whose threads come and go.
const churnVar = "STILL_TEST_CHURN"

func TestMain(m *testing.M) {
	if os.Getenv(churnVar) != "" {
		churn()
	}
	os.Exit(m.Run())
}

func churn() {
	for range 4 {
		go func() {
			for {
				ended := make(chan struct{})
				go func() {
					runtime.LockOSThread() // its thread ends with it
					close(ended)
				}()
				<-ended
			}
		}()
	}
	select {}
}

// Threads that are made and end at any moment are traced while their process is awake, and by nobody afterwards.
func TestAwakeThreadsComeAndGo(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), churnVar+"=1")
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	pid := cmd.Process.Pid
	for range 60 {
		must(t, Stop(pid))
		a, err := Wake(pid, Watch{})
		must(t, err)
		time.Sleep(3 * time.Millisecond)
		must(t, a.End())
		if Traced(pid) {
			t.Fatal("it is still traced")
		}
	}
	// A thread that were left in a stop of its tracing would not stop with the others.
	must(t, Stop(pid))
}

// sleeper starts a process with one thread.
func sleeper(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd.Process.Pid
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestStopAndContinue(t *testing.T) {
	pid := sleeper(t)
	if Stands(pid) || Traced(pid) {
		t.Error("it stands, or is traced, before anything was done")
	}
	must(t, Stop(pid))
	if !Stands(pid) {
		t.Error("stopped, it does not stand")
	}
	must(t, Continue(pid))
	for end := time.Now().Add(limit); Stands(pid); {
		if time.Now().After(end) {
			t.Fatal("continued, it stands still")
		}
	}
}

// A thread that runs in a stopped process goes back into the stop, whether the tracer ends that or dies.
func TestRun(t *testing.T) {
	pid := sleeper(t)
	must(t, Stop(pid))
	for range 20 {
		r, err := Run(pid, nil, func(int, string) bool { return true })
		must(t, err)
		if !Traced(pid) {
			t.Error("it is not traced")
		}
		if Stopped(pid) {
			t.Error("it does not run")
		}
		must(t, r.End())
		if Traced(pid) || !Stopped(pid) {
			t.Error("it is traced, or runs, at the end")
		}
	}
	r, err := Run(pid, nil, func(int, string) bool { return false })
	must(t, err)
	if !Stopped(pid) {
		t.Error("a thread runs that nobody wanted")
	}
	must(t, r.End())
}

// One that waits for memory has no signal to show for it afterwards but the one that is its own.
func TestAwakeTakesSignals(t *testing.T) {
	pid := sleeper(t)
	must(t, Stop(pid))
	a, err := Wake(pid, Watch{})
	must(t, err)
	if Stopped(pid) {
		t.Error("it does not run")
	}
	must(t, syscall.Kill(pid, syscall.SIGTERM))
	for end := time.Now().Add(limit); !strings.Contains("ZX", state(pid, pid)); {
		if time.Now().After(end) {
			t.Fatal("it does not take a signal while it is awake")
		}
	}
	must(t, a.End())
}

func TestGone(t *testing.T) {
	cmd := exec.Command("true")
	must(t, cmd.Run())
	pid := cmd.Process.Pid
	if Stands(pid) || Stopped(pid) || Traced(pid) {
		t.Error("one that is gone stands, is stopped or is traced")
	}
	if err := Stop(pid); err == nil {
		t.Error("one that is gone was stopped")
	}
	must(t, Continue(pid))
	if _, err := Wake(pid, Watch{}); err == nil {
		t.Error("one that is gone is awake")
	}
}
