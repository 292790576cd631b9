package cuda

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/cuda/cudasim"
	"github.com/gpucr/gpucr-fs/cuda/freeze"
)

// allRun waits until no process of the application is stopped.
func (r *rig) allRun() {
	r.t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		pids, err := cuda.Tree(r.app.PID)
		must(r.t, err)
		stopped := 0
		for _, pid := range pids {
			if freeze.Stands(pid) {
				stopped = pid
			}
		}
		if stopped == 0 {
			return
		}
		if time.Now().After(end) {
			r.t.Fatalf("process %d is stopped", stopped)
		}
	}
}

// Who stops itself because its child is stopped, as su and sudo do, goes on with it, in the tree and above.
func TestWaiterGoesOn(t *testing.T) {
	r := start(t, cudasim.Options{Waited: true, Asks: true})
	children, err := cuda.Tree(r.app.PID)
	must(t, err)
	for i, root := range []int{children[0], children[1]} {
		r.ok("dump", r.store, fmt.Sprint("goes-on-", i), "-t", fmt.Sprint(root), "--leave-running", "--", "--shell-job")
		r.verify()
		r.allRun()
	}
	r.ok("dump", r.store, "last", "-t", r.pid())
	r.gone()
	r.restored("last")
	r.verify()
	r.allRun()
}

// A process that somebody has stopped is refused at once: its GPU work would never end.
func TestStoppedIsRefused(t *testing.T) {
	r := start(t, cudasim.Options{})
	must(t, syscall.Kill(r.app.PID, syscall.SIGSTOP))
	begun := time.Now()
	r.fails([]string{"dump", r.store, "refused", "-t", r.pid(), "--leave-running"}, "is stopped", "kill -CONT")
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("the refusal took %v", took)
	}
	if !freeze.Stands(r.app.PID) {
		t.Error("it is not stopped any more")
	}
	must(t, syscall.Kill(r.app.PID, syscall.SIGCONT))
	r.ok("dump", r.store, "dumped", "-t", r.pid(), "--leave-running")
	r.verify()
}

// criu's --leave-stopped leaves processes stopped, with their GPUs.
func TestLeaveStopped(t *testing.T) {
	r := start(t, cudasim.Options{Processes: 2, Asks: true})
	goOn := func() {
		pids, err := cuda.Tree(r.app.PID)
		must(t, err)
		for _, pid := range pids {
			if !freeze.Stands(pid) {
				t.Errorf("process %d runs", pid)
			}
			must(t, freeze.Continue(pid))
		}
		r.verify()
	}
	r.ok("dump", r.store, "stopped", "-t", r.pid(), "--", "--leave-stopped")
	goOn()
	r.ok("dump", r.store, "last", "-t", r.pid())
	r.gone()
	r.restored("last", "--", "--leave-stopped")
	goOn()
}

// An application that is called as the driver's threads are still stands still.
func TestNameOfADriversThread(t *testing.T) {
	text, err := os.ReadFile(sim.App)
	must(t, err)
	named := *sim
	named.App = filepath.Join(dir, "cuda-app")
	must(t, os.WriteFile(named.App, text, 0o700))
	former := sim
	sim = &named
	t.Cleanup(func() { sim = former })
	r := start(t, cudasim.Options{Asks: true})
	for range 2 {
		r.ok("dump", r.store, fmt.Sprint(time.Now().UnixNano()), "-t", r.pid(), "--leave-running")
		r.verify()
	}
}
