package plugin

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/tests/e2e/kfd/rig"
)

var stress = flag.Duration("vram.stress", 0, "how long restores go on while CPUs work on VRAM; one at least")

// onDemand lets processes run before their VRAM is there.
const onDemand = "GPUCR_VRAM=lazy"

// lazy is a bench whose processes run before their VRAM is there.
func lazy(t *testing.T, opts kfdsim.Options) *bench {
	t.Helper()
	b := newBench(t, opts)
	b.env = append(b.env, onDemand)
	return b
}

// rate sets what the links of all GPUs carry, in bytes per second; 0 is as fast as this machine. Tests hold VRAM back
// until they have seen what they look for, however long this machine takes.
func (b *bench) rate(n float64) {
	b.T.Helper()
	if err := b.Sim.SetDMARate(0, n); err != nil {
		b.T.Fatal(err)
	}
}

// heldBack is a rate at which 64 MiB take half a minute, and what a CPU may touch some seconds.
const heldBack = 2e6

// missing is how much of its GPU memory a process of the simulator lacks; all of
// them where pid is 0. waits says that queues stand still.
func (b *bench) missing(pid int) (bytes uint64, waits bool) {
	b.T.Helper()
	for _, p := range b.Sim.State().Processes {
		if pid == 0 || p.PID == pid {
			bytes, waits = bytes+p.Missing, waits || p.Evictions > 0
		}
	}
	return bytes, waits
}

// ready waits until no queue stands still and nothing is missing, and says when.
func (b *bench) ready() time.Time {
	b.T.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		n, waits := b.missing(0)
		if n == 0 && !waits {
			return time.Now()
		}
		if time.Now().After(deadline) {
			b.T.Fatalf("%d bytes are missing still, queues wait: %v", n, waits)
		}
	}
}

// passes is how often the CPU of a process has gone over its VRAM.
func passes(t *testing.T, app *rig.Application, proc int) int {
	t.Helper()
	line, err := os.ReadFile(filepath.Join(app.Dir, fmt.Sprintf("cpu.%d", proc)))
	if err != nil {
		t.Fatal(err)
	}
	var n int
	fmt.Sscanf(string(line), "pass %d", &n)
	return n
}

// A process runs before its VRAM is there, its queues afterwards, and the helper ends
// then. Its CPU finds the VRAM that it works on as it was, and what it writes stays.
func TestRunsBeforeVRAM(t *testing.T) {
	const big = 64 << 20
	b := lazy(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}}})
	app := b.StartApp(1, "--interval", "1", "--bos", "20", "--max-bo", "131072", "--big-bo", fmt.Sprint(big),
		"--cpu-bo", "2097152")
	b.dump(app)
	before, n := passes(t, app, 0), 0
	for late := time.Now().Add(*stress); n == 0 || time.Now().Before(late) && !t.Failed(); n++ {
		// As long as what is there: criu looks at the size.
		if err := os.WriteFile(filepath.Join(app.Dir, "cpu.0"), fmt.Appendf(nil, "pass %20d\n", 0), 0o644); err != nil {
			t.Fatal(err)
		}
		b.rate(heldBack)
		b.restore()
		if n, waits := b.missing(0); n < big/2 || !waits {
			t.Errorf("the restore returned with %d bytes missing, queues wait: %v", n, waits)
		}
		for passes(t, app, 0) < before+3 {
			if _, _, err := app.Status(0); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		if n, waits := b.missing(0); n == 0 || !waits {
			t.Errorf("the CPU worked when all was there: %d bytes missing, queues wait: %v", n, waits)
		}
		b.rate(0)
		b.noHelpers()
		if n, _ := b.missing(0); n != 0 {
			t.Errorf("%d bytes are missing when the helper has ended", n)
		}
		b.ready() // the driver begins queues after its answer
		app.WaitRounds(1)
		b.noGPUErrors()
		app.Kill()
		app.WaitGone()
	}
	t.Logf("%d restores", n)
}

// The queues of one process run before the VRAM of another on the same GPU is there.
func TestQueuesDoNotWaitForOthers(t *testing.T) {
	b := lazy(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}}})
	app := b.StartApp(2, "--interval", "1", "--bos", "20", "--max-bo", "65536", "--big-bo", fmt.Sprint(80<<20))
	b.dump(app)
	b.rate(8 * heldBack)
	b.restore()
	early := false
	for !early {
		var runs, waits bool
		for _, p := range b.Sim.State().Processes {
			runs = runs || p.Missing == 0 && p.Evictions == 0 && len(p.Queues) > 0
			waits = waits || p.Missing > 8<<20
		}
		early = runs && waits
		if n, _ := b.missing(0); n == 0 {
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	if !early {
		t.Error("no queue ran before all VRAM was there")
	}
	b.rate(0)
	b.ready()
	app.WaitRounds(1)
	b.noHelpers()
	b.noGPUErrors()
	app.Kill()
}

// A dump of a process whose VRAM is on its way waits for it.
func TestDumpWaitsForVRAM(t *testing.T) {
	b := lazy(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}}})
	app := b.StartApp(1, "--interval", "1", "--bos", "20", "--max-bo", "131072", "--big-bo", fmt.Sprint(64<<20))
	b.dump(app)
	b.rate(heldBack)
	b.restore()
	b.images = filepath.Join(b.Dir, "again")
	if err := os.Mkdir(b.images, 0o755); err != nil {
		t.Fatal(err)
	}
	if n, _ := b.missing(0); n == 0 {
		t.Error("nothing is missing")
	}
	b.rate(10 * heldBack)
	b.dump(app)
	b.rate(0)
	b.noHelpers()
	b.restore()
	app.WaitRounds(1)
	b.noHelpers()
	b.noGPUErrors()
	app.Kill()
}

// lazyFaults is a faultBench with VRAM on demand.
type lazyFaults struct {
	*faultBench
	rounds []int // of each process when it was dumped
	all    time.Duration
}

func newLazyFaults(t *testing.T, prepare func(*bench)) *lazyFaults {
	f := &lazyFaults{faultBench: newFaultBench(t, func(b *bench) {
		b.env = append(b.env, onDemand)
		prepare(b)
	})}
	for i := range f.procs {
		_, round, err := f.app.Status(i)
		if err != nil {
			t.Fatal(err)
		}
		f.rounds = append(f.rounds, round)
	}
	return f
}

// begin forgets what the processes have written last, and how long it took until all was
// there when nothing went wrong.
func (f *lazyFaults) begin() {
	f.T.Helper()
	for i := range f.procs {
		name := filepath.Join(f.app.Dir, fmt.Sprintf("status.%d", i))
		line, err := os.ReadFile(name)
		if err == nil {
			const zero = "tick 0 round 0 ok"
			err = os.WriteFile(name, []byte(zero+strings.Repeat(" ", len(line)-len(zero)-1)+"\n"), 0o644)
		}
		if err != nil {
			f.T.Fatal(err)
		}
	}
}

// outcome holds a restore to the rule: every process runs with the VRAM it had, or it is
// gone and somebody has said why. It is not without an end, and no queue comes to
// VRAM that is not there.
func (f *lazyFaults) outcome(r *run, err error) (alive bool) {
	f.T.Helper()
	f.noHelpers()
	deadline := time.Now().Add(2 * time.Minute)
	for ; ; time.Sleep(5 * time.Millisecond) {
		ahead := 0
		for i, at := range f.rounds {
			_, round, err := f.app.Status(i)
			if err != nil {
				f.T.Fatalf("process %d: %v", i, err)
			}
			if round >= at+2 {
				ahead++
			}
		}
		gone := len(f.Sim.State().Processes) == 0
		if alive = ahead == f.procs; alive || gone {
			break
		}
		if time.Now().After(deadline) {
			f.T.Fatalf("the application neither runs nor is gone: %+v", f.Sim.State().Processes)
		}
	}
	for _, e := range f.Sim.State().Errors {
		if strings.Contains(e.What, "is not filled") {
			f.T.Fatalf("a queue ran too early: %+v", e)
		}
	}
	if !alive && err == nil {
		said, e := os.ReadFile(r.log)
		if e != nil {
			f.T.Fatal(e)
		}
		if !strings.Contains(string(said), "process ended") {
			f.T.Fatalf("the application is gone without a word; criu and its helpers said: %q", said)
		}
	}
	f.end()
	f.WaitVRAMFree()
	return alive
}

// helpersOf gives those that are watchdogs, or those that are not.
func (f *lazyFaults) helpersOf(watchdogs bool) []int {
	return slices.DeleteFunc(f.helpers(), func(pid int) bool {
		line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		return err != nil || strings.Contains(string(line), "--watchdog") != watchdogs
	})
}

// strike restores, and has something happen at a random moment until all would be there.
func (f *lazyFaults) strike(kill func(r *run)) (alive bool) {
	f.T.Helper()
	f.begin()
	r := f.startCriu("restore", "-d")
	time.Sleep(time.Duration(f.rand.Int64N(int64(f.all))))
	kill(r)
	return f.outcome(r, r.wait())
}

// undisturbed restores while nothing goes wrong, and measures.
func (f *lazyFaults) undisturbed() {
	f.T.Helper()
	f.begin()
	f.Sim.DMAStats(true)
	began := time.Now()
	r := f.startCriu("restore", "-d")
	err := r.wait()
	f.all = f.ready().Sub(began)
	f.jobs = 0
	for _, s := range f.Sim.DMAStats(true) {
		f.jobs += s.Jobs
	}
	if !f.outcome(r, err) {
		f.T.Fatalf("the restore failed: %v", err)
	}
}

func kill(pids []int) {
	for _, pid := range pids {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

// Whoever is killed, and whatever fails: VRAM is right, or the process is ended.
func TestVRAMFaults(t *testing.T) {
	f := newLazyFaults(t, func(*bench) {})
	f.undisturbed()
	each := func(name string, strike func() bool) {
		t.Run(name, func(t *testing.T) {
			defer f.as(t)()
			alive := 0
			n := (*moments + 1) / 2
			for range n {
				if strike() {
					alive++
				}
			}
			t.Logf("the application went on after %d of %d", alive, n)
		})
	}
	each("helper killed", func() bool { return f.strike(func(*run) { kill(f.helpersOf(false)) }) })
	each("watchdog killed", func() bool {
		alive := f.strike(func(*run) { kill(f.helpersOf(true)) })
		if !alive {
			f.T.Error("the application is gone")
		}
		return alive
	})
	each("criu killed", func() bool { return f.strike(func(r *run) { r.cmd.Process.Kill() }) })
	inject := func(fault kfdsim.Fault) bool {
		if err := f.Sim.Inject(fault); err != nil {
			f.T.Fatal(err)
		}
		defer f.Sim.ClearFaults()
		return f.strike(func(*run) {})
	}
	each("dma error", func() bool {
		return inject(kfdsim.Fault{Kind: kfdsim.FaultDMA, After: f.rand.IntN(int(f.jobs)), Count: 1})
	})
	each("mapping missing", func() bool {
		return inject(kfdsim.Fault{Kind: kfdsim.FaultMapping, After: f.rand.IntN(60), Count: 1})
	})
	each("RESUME refused", func() bool {
		return inject(kfdsim.Fault{
			Kind:    kfdsim.FaultIoctl,
			Request: "AMDKFD_IOC_CRIU_OP RESUME",
			Errno:   syscall.EINVAL,
			Count:   1,
		})
	})
	f.undisturbed()
}

// abandoned restores an application with VRAM on demand, and kills helper and watchdog at once.
func abandoned(t *testing.T, b *bench, dumped func()) *rig.Application {
	t.Helper()
	// Other tests look after what is abandoned, too.
	for _, args := range [][]string{{"mkdir", "-p", "/run/gpucr-fs"},
		{"mount", "-t", "tmpfs", "none", "/run/gpucr-fs"}} {
		if err := b.start(b.Command(args[0], args[1:]...)).wait(); err != nil {
			t.Fatal(err)
		}
	}
	app := b.StartApp(1, "--interval", "1", "--bos", "20", "--max-bo", "262144", "--big-bo", fmt.Sprint(64<<20))
	b.dump(app)
	dumped()
	b.rate(heldBack)
	r := b.startCriu("restore", "-d")
	if err := r.wait(); err != nil {
		t.Fatal(err)
	}
	if n, waits := b.missing(0); n == 0 || !waits {
		said, err := os.ReadFile(r.log)
		if err != nil {
			t.Fatal(err)
		}
		t.Fatalf("%d bytes are missing before they are killed, queues wait: %v\n%s", n, waits, said)
	}
	both := b.helpers()
	for _, pid := range both { // the watchdog could be quicker than its own end
		syscall.Kill(pid, syscall.SIGSTOP)
	}
	kill(both)
	b.rate(0)
	b.noHelpers()
	return app
}

// Helper and watchdog are killed at once: a dump does not take what was never filled, and whoever comes next ends the
// process.
func TestAbandonedVRAM(t *testing.T) {
	b := lazy(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}}})
	app := abandoned(t, b, func() {})
	b.images = filepath.Join(b.Dir, "again")
	if err := os.Mkdir(b.images, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := b.criu("dump", "-t", fmt.Sprint(app.PID)); err == nil {
		t.Error("VRAM that was never filled was dumped")
	}
	if log := b.criuLog("dump"); !strings.Contains(log, "who brought the GPU memory of the process was killed") {
		t.Errorf("the dump does not say why it failed: %s", log)
	}
	app.WaitGone()
	b.noHelpers()
}

// The daemon that filled ends the process.
func TestAbandonedVRAMOfStore(t *testing.T) {
	b := lazy(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}}})
	store := b.mounted()
	abandoned(t, b, func() { b.gpucr("seal", store, "gpu") }).WaitGone()
	for late := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		log, err := os.ReadFile(filepath.Join(store, "daemon.log"))
		if err != nil || time.Now().After(late) {
			t.Fatalf("the daemon has not said so: %v\n%s", err, log)
		}
		if strings.Contains(string(log), "process ended: the rest of its GPU memory did not come") {
			break
		}
	}
}

// A process whose CPU could read VRAM before that was there may have read anything.
func TestMapsVRAMTooEarly(t *testing.T) {
	b := lazy(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}}})
	app := b.StartApp(
		1, "--interval", "1", "--bos", "20", "--max-bo", "131072", "--big-bo", fmt.Sprint(64<<20), "--map-late",
	)
	b.dump(app)
	b.rate(3 * heldBack)
	r := b.startCriu("restore", "-d")
	if err := r.wait(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(app.PID, syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	app.WaitGone()
	b.noHelpers()
	b.noGPUErrors()
	said, err := os.ReadFile(r.log)
	if err != nil || !strings.Contains(string(said), "its CPU could touch VRAM before that was there") {
		t.Errorf("the helper said %q, %v", said, err)
	}
}

// The daemon is killed while it fills what runs already.
func TestVRAMStoreFaults(t *testing.T) {
	var store string
	f := newLazyFaults(t, func(b *bench) {
		store = filepath.Join(b.Dir, "store")
		b.gpucr("init", store)
		b.daemonsEnd(store)
		b.gpucr("mount", "--new", "gpu", store, b.images)
	})
	f.gpucr("seal", store, "gpu")
	f.undisturbed()
	f.gpucr("umount", f.images)
	for range (*moments + 1) / 2 {
		f.gpucr("mount", store, f.images)
		serving := f.daemons(store)
		alive := f.strike(func(*run) { kill(serving) })
		t.Logf("the application goes on: %v", alive)
		f.gpucr("umount", f.images)
	}
}
