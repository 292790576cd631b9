package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
)

// newMountFaultBench makes a faultBench whose images are a checkpoint of a store; each
// restore has a mount of its own.
func newMountFaultBench(t *testing.T) (f *faultBench, store string) {
	f = newFaultBench(t, func(b *bench) {
		store = filepath.Join(b.Dir, "store")
		b.gpucr("init", store)
		b.daemonsEnd(store)
		b.gpucr("mount", "--new", "gpu", store, b.images)
	})
	f.gpucr("seal", store, "gpu")
	f.gpucr("umount", f.images)
	return f, store
}

func (f *faultBench) mount(store string) { f.gpucr("mount", store, f.images) }

// unmount ends a mount, also one whose daemon was killed.
func (f *faultBench) unmount() {
	f.T.Helper()
	f.gpucr("umount", f.images)
}

func TestStoreFaults(t *testing.T) {
	f, store := newMountFaultBench(t)
	f.mount(store)
	f.measure()
	f.unmount()
	t.Run("daemon killed", func(t *testing.T) {
		defer f.as(t)()
		for range *moments {
			f.mount(store)
			serving := f.daemons(store)
			if len(serving) != 1 {
				t.Fatalf("processes %v serve the store", serving)
			}
			r := f.startCriu("restore", "-d")
			f.moment(r)
			if err := syscall.Kill(serving[0], syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			f.outcome(r.wait())
			f.unmount()
		}
	})
	t.Run("chunks unreadable", func(t *testing.T) {
		defer f.as(t)()
		packs, err := filepath.Glob(filepath.Join(store, "packs", "*.pack"))
		if err != nil || len(packs) == 0 {
			t.Fatalf("%d packs, %v", len(packs), err)
		}
		for range *moments {
			name := packs[f.rand.IntN(len(packs))]
			whole, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			file, err := os.OpenFile(name, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			// A stretch of a few chunks, somewhere.
			n := min(1<<20, len(whole))
			at := f.rand.IntN(len(whole) - n + 1)
			if _, err := file.WriteAt(make([]byte, n), int64(at)); err != nil {
				t.Fatal(err)
			}
			if err := file.Close(); err != nil {
				t.Fatal(err)
			}
			f.mount(store)
			if f.outcome(f.criu("restore", "-d")) && strings.Contains(f.pluginErrors(), "fill ") {
				f.says("buffer object")
			}
			f.unmount()
			if err := os.WriteFile(name, whole, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
	f.mount(store)
	f.measure()
	f.unmount()
}

// The restore server has its plans when CRIU waits for VRAM: a restore that needs no more of the helper goes on when
// that is killed.
func TestHelperKilledWithPlansMade(t *testing.T) {
	b := newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}}})
	store := b.mounted()
	// Few buffer objects, none of them the process's own memory: the helper reads that before RESUME.
	app := b.StartApp(2, "--interval", "1", "--bos", "4", "--max-bo", "65536", "--big-bo", "16777216")
	b.dump(app)
	b.gpucr("seal", store, "gpu")
	b.rate(heldBack)
	r := b.startCriu("restore", "-d")
	b.waitsForVRAM(t, r)
	killed := b.helpers()
	for _, pid := range killed {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	b.rate(0)
	if err := r.wait(); err != nil || len(killed) == 0 {
		t.Fatalf("helpers %v were killed: %v\n%s", killed, err, b.criuLog("restore"))
	}
	if n, _ := b.missing(0); n != 0 {
		t.Errorf("%d bytes are missing after the restore", n)
	}
	b.ready() // the driver lets queues run some time after RESUME
	app.WaitRounds(1)
	b.noGPUErrors()
	app.Kill()
	if said := b.criuLog("restore"); !strings.Contains(said, "is complete without it") {
		t.Errorf("criu's log does not tell of the helper:\n%s", said)
	}
}

// daemons returns the processes that hold a store.
func (b *bench) daemons(store string) (pids []int) {
	b.T.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		b.T.Fatal(err)
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && to == filepath.Join(store, "lock") {
			pid, err := strconv.Atoi(strings.Split(l, "/")[2])
			if err != nil {
				b.T.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// daemonsEnd ends, with the test, what still serves a store.
func (b *bench) daemonsEnd(store string) {
	b.T.Cleanup(func() {
		for _, pid := range b.daemons(store) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	})
}

// A dump that fails leaves the application running, queues and all.
func TestFailedDumps(t *testing.T) {
	b := newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{DMARate: slowRate / 5}}})
	app := b.StartApp(2, "--interval", "1", "--bos", "20", "--max-bo", "1048576")
	f := &faultBench{bench: b, app: app}
	dump := func(strike func(r *run)) error {
		r := f.startCriu("dump", "-t", strconv.Itoa(app.PID))
		strike(r)
		return r.wait()
	}
	fails := func(name string, strike func(r *run)) {
		t.Run(name, func(t *testing.T) {
			defer f.as(t)()
			if err := dump(strike); err == nil {
				t.Fatal("the dump succeeded")
			}
			f.noHelpers()
			f.Sim.ClearFaults()
			for _, p := range f.Sim.State().Processes {
				if p.Evictions != 0 {
					said, _ := os.ReadFile(filepath.Join(f.Dir, fmt.Sprintf("run-%d", f.runs)))
					t.Fatalf("process %d: queues stand still after the failed dump: %s", p.PID, said)
				}
			}
			app.WaitRounds(1)
		})
	}
	// once calls act on the helpers when there are some.
	once := func(r *run, act func(helpers []int)) {
		for {
			select {
			case <-r.done:
				return
			case <-time.After(time.Millisecond):
			}
			if pids := f.helpers(); len(pids) > 0 {
				act(pids)
				return
			}
		}
	}
	b.rate(heldBack)
	fails("helper killed", func(r *run) {
		once(r, func(helpers []int) {
			for _, pid := range helpers {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		})
	})
	// Nobody but the helper is left then to unpause the processes.
	fails("criu killed", func(r *run) {
		once(r, func([]int) { r.cmd.Process.Kill() })
	})
	fails("dma error", func(*run) {
		if err := f.Sim.Inject(kfdsim.Fault{Kind: kfdsim.FaultDMA, After: 3, Count: 1}); err != nil {
			t.Fatal(err)
		}
	})
	// And then it works.
	b.rate(slowRate)
	f.dump(app)
	f.restore()
	app.WaitRounds(1)
	app.Kill()
}
