package plugin

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/tests/e2e/kfd/rig"
)

var (
	moments = flag.Int("faults.n", 2, "at how many random moments each fault strikes")
	seed    = flag.Uint64("faults.seed", uint64(time.Now().UnixNano()), "seed of the moments")
)

// slowRate lets a fill take a good part of a second.
const slowRate = 150e6

// faultBench is an application, dumped once, that is restored again and again
// while something goes wrong.
type faultBench struct {
	*bench
	app   *rig.Application
	procs int
	rand  *rand.Rand
	took  time.Duration // by a restore without a fault
	jobs  uint64        // of the DMA engines in it
}

func newFaultBench(t *testing.T, prepare func(*bench)) (f *faultBench) {
	t.Helper()
	t.Logf("seed %d", *seed)
	f = &faultBench{procs: 2,
		bench: newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{DMARate: slowRate}, {DMARate: slowRate}}}),
		rand:  rand.New(rand.NewPCG(*seed, 0))}
	prepare(f.bench)
	f.app = f.StartApp(f.procs, "--interval", "1", "--bos", "40", "--max-bo", "1048576")
	f.dump(f.app)
	return f
}

// measure restores without a fault.
func (f *faultBench) measure() {
	f.T.Helper()
	f.Sim.DMAStats(true)
	began := time.Now()
	f.restore()
	f.took = time.Since(began)
	for _, s := range f.Sim.DMAStats(true) {
		f.jobs += s.Jobs
	}
	f.app.WaitRounds(1)
	f.end()
}

// as lets a subtest fail in place of the test, until the function it returns is
// called.
func (f *faultBench) as(t *testing.T) func() {
	outer := f.T
	f.T = t
	return func() { f.T = outer }
}

// end ends the application and waits until its pids are free.
func (f *faultBench) end() {
	f.T.Helper()
	f.app.Kill()
	f.app.WaitGone()
}

// outcome holds a restore to the rule: the application runs with the VRAM it
// had, or nothing of it runs.
func (f *faultBench) outcome(err error) (failed bool) {
	f.T.Helper()
	f.noHelpers()
	if err == nil {
		f.app.WaitRounds(1)
		f.end()
		return false
	}
	deadline := time.Now().Add(time.Minute)
	for len(f.Sim.State().Processes) > 0 {
		if time.Now().After(deadline) {
			f.T.Fatalf("processes use the gpus after a failed restore: %+v\n%s", f.Sim.State().Processes,
				f.criuLog("restore"))
		}
		time.Sleep(10 * time.Millisecond)
	}
	// CRIU kills the rest of a tree; when it was killed itself, nobody does.
	f.end()
	// The daemon lets go of buffer objects when it notices that who asked is gone.
	f.WaitVRAMFree()
	return true
}

// survives waits for what becomes of the application when CRIU was killed at the end
// of its work: true when every process verifies all its BOs once more, false
// when none is left. Whoever notices that CRIU is gone may end them meanwhile.
func (f *faultBench) survives() bool {
	f.T.Helper()
	want := make([]int, f.procs)
	deadline := time.Now().Add(2 * time.Minute)
	for first := true; ; first = false {
		ahead := 0
		for i := range want {
			_, round, err := f.app.Status(i)
			if err != nil && !os.IsNotExist(err) {
				f.T.Fatalf("process %d: %v\n%s", i, err, f.criuLog("restore"))
			}
			if first {
				want[i] = round + 2 // a round under way began before
			}
			if round >= want[i] {
				ahead++
			}
		}
		switch {
		case ahead == f.procs:
			return true
		case len(f.Sim.State().Processes) == 0:
			return false
		case time.Now().After(deadline):
			f.T.Fatalf("the application neither runs nor is gone: %+v\n%s", f.Sim.State(), f.criuLog("restore"))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// statuses are what the processes have written last.
func (f *faultBench) statuses() (all string) {
	f.T.Helper()
	for i := range f.procs {
		tick, round, err := f.app.Status(i)
		all += fmt.Sprintf("tick %d round %d %v; ", tick, round, err)
	}
	return all
}

// pluginErrors are the lines of criu's log in which the plugin complains.
func (f *faultBench) pluginErrors() string {
	f.T.Helper()
	var out []string
	for line := range strings.Lines(f.criuLog("restore")) {
		if strings.Contains(line, "amdgpu_plugin: Error") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

// says fails the test when a failed restore has not told why.
func (f *faultBench) says(what string) {
	f.T.Helper()
	if got := f.pluginErrors(); !strings.Contains(got, what) {
		f.T.Errorf("the restore failed without a word of %q:\n%s\n%s", what, got,
			rig.ErrorLines(filepath.Join(f.Dir, "work-restore/log")))
	}
}

// moment waits for a random part of a restore's time, or its end.
func (f *faultBench) moment(r *run) {
	select {
	case <-time.After(time.Duration(f.rand.Int64N(int64(f.took)))):
	case <-r.done:
	}
}

func TestFaults(t *testing.T) {
	f := newFaultBench(t, func(*bench) {})
	f.measure()
	each := func(name string, strike func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			defer f.as(t)()
			for range *moments {
				strike(t)
			}
		})
	}
	each("helper killed", func(t *testing.T) {
		r := f.startCriu("restore", "-d")
		f.moment(r)
		killed := f.helpers()
		for _, pid := range killed {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		if f.outcome(r.wait()) {
			f.says("plugin-helper")
		} else if len(killed) > 0 {
			t.Logf("helper %v was done already", killed)
		}
	})
	each("socket cut", func(t *testing.T) {
		r := f.startCriu("restore", "-d")
		f.moment(r)
		for _, pid := range f.helpers() {
			cutSockets(t, pid)
		}
		if f.outcome(r.wait()) {
			f.says("plugin-helper")
		}
	})
	each("criu killed", func(t *testing.T) {
		r := f.startCriu("restore", "-d")
		f.moment(r)
		r.cmd.Process.Kill() // nsenter has become criu
		err := r.wait()
		f.noHelpers()
		if err != nil && f.survives() {
			t.Log("criu was as good as done")
			f.end()
			return
		}
		f.outcome(err)
	})
	each("criu killed while it waits for VRAM", func(t *testing.T) {
		if err := os.Remove(filepath.Join(f.Dir, "work-restore/log")); err != nil {
			t.Fatal(err)
		}
		before := f.statuses()
		f.rate(4 * heldBack)
		defer f.rate(slowRate)
		r := f.startCriu("restore", "-d")
		f.waitsForVRAM(t, r)
		time.Sleep(time.Duration(f.rand.Int64N(int64(10 * time.Millisecond))))
		r.cmd.Process.Kill()
		if !f.outcome(r.wait()) {
			t.Fatal("criu was done before")
		}
		if after := f.statuses(); after != before {
			t.Errorf("a process ran before its VRAM was in place: %s, before %s", after, before)
		}
	})
	each("dma error", func(t *testing.T) {
		f.inject(kfdsim.Fault{Kind: kfdsim.FaultDMA, After: f.rand.IntN(int(f.jobs)), Count: 1})
	})
	each("mapping missing", func(t *testing.T) {
		f.inject(kfdsim.Fault{Kind: kfdsim.FaultMapping, After: f.rand.IntN(60), Count: 1})
	})
	each("submissions refused for a while", func(t *testing.T) {
		f.inject(kfdsim.Fault{Kind: kfdsim.FaultIoctl, Request: abi.AMDGPUIocCS.String(), Errno: syscall.EBUSY,
			After: f.rand.IntN(int(f.jobs)), Count: 3})
	})
	each("pages unreadable", func(t *testing.T) {
		pages, err := filepath.Glob(filepath.Join(f.images, "amdgpu-pages-*"))
		if err != nil || len(pages) == 0 {
			t.Fatalf("%d pages files, %v", len(pages), err)
		}
		name := pages[f.rand.IntN(len(pages))]
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(name, f.rand.Int64N(st.Size())); err != nil {
			t.Fatal(err)
		}
		if !f.outcome(f.criu("restore", "-d")) {
			t.Error("restored from a file that is too short")
		}
		f.says(filepath.Base(name))
		if err := os.WriteFile(name, whole, 0o644); err != nil {
			t.Fatal(err)
		}
	})
	// Nothing of all this has harmed the images.
	f.measure()
}

// inject restores with a fault of the simulator's.
func (f *faultBench) inject(fault kfdsim.Fault) {
	f.T.Helper()
	if err := f.Sim.Inject(fault); err != nil {
		f.T.Fatal(err)
	}
	err := f.criu("restore", "-d")
	struck := f.Sim.ClearFaults()
	if f.outcome(err) {
		f.says("buffer object")
	} else if struck > 0 && fault.Kind != kfdsim.FaultIoctl {
		f.T.Logf("%+v struck %d times and did no harm", fault, struck)
	}
}

// cutSockets shuts a process's connections of the plugin's kind down.
func cutSockets(t *testing.T, pid int) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it has ended
	}
	defer unix.Close(pidfd)
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		n, err := strconv.Atoi(filepath.Base(l))
		if err != nil {
			continue
		}
		fd, err := unix.PidfdGetfd(pidfd, n, 0)
		if err != nil {
			continue
		}
		if typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err == nil && typ == unix.SOCK_SEQPACKET {
			unix.Shutdown(fd, unix.SHUT_RDWR)
		}
		unix.Close(fd)
	}
}
