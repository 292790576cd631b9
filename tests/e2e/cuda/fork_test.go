package cuda

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/cuda/cudasim"
)

// worker forks a child that answers as process n, and gives its pid.
func (r *rig) worker(n int) int {
	r.t.Helper()
	line, err := r.app.Say(0, fmt.Sprintf("worker %d", n), timeout)
	must(r.t, err)
	pid, err := strconv.Atoi(strings.TrimPrefix(line, "ok "))
	must(r.t, err)
	return pid
}

// devices counts what a process has of the simulated GPU's devices.
func devices(t *testing.T, pid int) (descriptors, mappings int) {
	t.Helper()
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	must(t, err)
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "/dev/nvidia") {
			descriptors++
		}
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	must(t, err)
	return descriptors, strings.Count(string(text), " /dev/nvidia")
}

// A worker that is forked while a dump waits until the memory of a restore is given back is let go of the GPU, too.
func TestForkedWhileDumpWaits(t *testing.T) {
	r := start(t, cudasim.Options{})
	if got, err := r.app.Say(0, "release 4000", timeout); err != nil || got != "ok" {
		t.Fatalf("%q, %v", got, err)
	}
	begun, forked := time.Now(), make(chan string, 1)
	r.worker(1)
	go func() {
		time.Sleep(1500 * time.Millisecond)
		line, _ := r.app.Say(0, "worker 2", timeout)
		forked <- line
	}()
	r.ok("dump", r.store, "one", "-t", r.pid(), "--leave-running")
	if took := time.Since(begun); took < 3*time.Second {
		t.Errorf("the dump took %v: it did not wait", took)
	}
	pid, err := strconv.Atoi(strings.TrimPrefix(<-forked, "ok "))
	must(t, err)
	if fds, maps := devices(t, pid); fds != 0 || maps != 0 {
		t.Errorf("the worker still has %d descriptors and %d mappings of the GPU", fds, maps)
	}
	r.verify()
}

// A tree as a DataLoader has it, workers forked by a process that uses CUDA, is dumped and restored whole; the
// workers notice nothing, and the parent keeps its GPU.
func TestForkedWorkers(t *testing.T) {
	r := start(t, cudasim.Options{})
	workers := map[int]int{}
	for n := 5; n < 8; n++ {
		workers[n] = r.worker(n)
		if fds, maps := devices(t, workers[n]); fds != 1 || maps != 3 {
			t.Fatalf("a worker has %d descriptors and %d mappings of the GPU", fds, maps)
		}
	}
	count := 0
	ask := func() {
		t.Helper()
		count++
		for n := range workers {
			want, got, err := r.app.Ask(n, 11, timeout)
			must(t, err)
			if got != count || want != "" && len(want) != 16 {
				t.Errorf("worker %d answers %q for the %d. time, want the %d.", n, want, got, count)
			}
		}
		r.verify()
	}
	ask()
	r.ok("dump", r.store, "one", "-t", r.pid(), "--leave-running")
	for n, pid := range workers {
		if fds, maps := devices(t, pid); fds != 0 || maps != 0 {
			t.Errorf("worker %d still has %d descriptors and %d mappings of the GPU", n, fds, maps)
		}
	}
	if fds, maps := devices(t, r.app.PID); fds != 1 || maps != 3 {
		t.Errorf("the parent has %d descriptors and %d mappings of the GPU", fds, maps)
	}
	ask()
	r.ok("dump", r.store, "two", "-t", r.pid())
	r.gone()
	for range 2 {
		r.restored("two")
		count = 2
		ask()
		must(t, r.app.Kill())
	}
}

// Who has opened a GPU's device itself, as NVML does, keeps it: the dump is refused.
func TestOwnDevices(t *testing.T) {
	r := start(t, cudasim.Options{})
	pid := r.worker(5)
	if _, err := r.app.Say(5, "open", timeout); err != nil {
		t.Fatal(err)
	}
	r.fails([]string{"dump", r.store, "one", "-t", r.pid()}, "no process that it descends from has open",
		"CUDA does not survive fork")
	if fds, maps := devices(t, pid); fds != 2 || maps != 3 {
		t.Errorf("the worker has %d descriptors and %d mappings of the GPU", fds, maps)
	}
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	r.verify()
}

// However often the one who lets a child go is killed, child and parent go on, and a later dump succeeds.
func TestLetGoKilled(t *testing.T) {
	r := start(t, cudasim.Options{})
	for i := range *kills {
		pid := r.worker(5 + i)
		cmd := r.prepare(t.Context(), "gpucr-fs", "dump", r.store, fmt.Sprintf("killed-%d", i), "-t", r.pid(),
			"--leave-running")
		must(t, cmd.Start())
		// Until the worker's devices become fewer, or the dump has ended without that.
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		for gone := false; !gone; {
			fds, maps := devices(t, pid)
			select {
			case <-ended:
				ended <- nil
				gone = true
			default:
				gone = fds+maps < 4
			}
		}
		syscall.Kill(cmd.Process.Pid, syscall.SIGKILL)
		<-ended
		for work := r.work(cmd); work.Busy(); {
			time.Sleep(5 * time.Millisecond)
		}
		if _, _, err := r.app.Ask(5+i, 3, timeout); err != nil {
			t.Fatalf("worker %d: %v", pid, err)
		}
		r.verify()
	}
	r.ok("dump", r.store, "after", "-t", r.pid(), "--leave-running")
	r.verify()
}
