package kfd

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/tests/e2e/kfd/rig"
	"github.com/gpucr/gpucr-fs/tests/kfdplugin"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := rig.RemoveBuilt(); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	}))
}

// bench is a rig with the minimal plugin and a place for images.
type bench struct {
	*rig.Rig
	plugin, images, hooks string
	copyBy                string // KFDPLUGIN_COPY
}

func newBench(t *testing.T, opts kfdsim.Options) *bench {
	t.Helper()
	b := &bench{Rig: rig.New(t, opts)}
	b.images, b.hooks = filepath.Join(b.Dir, "images"), filepath.Join(b.Dir, "hooks")
	if err := os.Mkdir(b.images, 0o755); err != nil {
		t.Fatal(err)
	}
	b.plugin = b.Built("plugin", func(dir string) error { return kfdplugin.Build(b.Root, dir) })
	return b
}

func (b *bench) criu(args ...string) error {
	log := args[0] + ".log"
	err := b.Criu([]string{"KFDPLUGIN_LOG=" + b.hooks, "KFDPLUGIN_COPY=" + b.copyBy},
		append(args, "-D", b.images, "-L", b.plugin, "-v4", "-o", log)...)
	if err != nil {
		hooks, _ := os.ReadFile(b.hooks)
		return fmt.Errorf("%w\n%s\nhooks:\n%s\nsimulator: %q", err, rig.ErrorLines(filepath.Join(b.images, log)), hooks,
			b.Sim.State().Refusals)
	}
	return nil
}

// dump dumps and lets criu end the application.
func (b *bench) dump(app *rig.Application) {
	b.T.Helper()
	if err := b.criu("dump", "-t", fmt.Sprint(app.PID)); err != nil {
		b.T.Fatal(err)
	}
	app.WaitGone()
}

func (b *bench) restore() {
	b.T.Helper()
	if err := b.criu("restore", "-d"); err != nil {
		b.T.Fatal(err)
	}
}

// hookLines returns what the plugin noted of one hook.
func (b *bench) hookLines(hook string) []string {
	b.T.Helper()
	data, err := os.ReadFile(b.hooks)
	if err != nil {
		b.T.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, hook) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// noGPUErrors fails the test when a GPU met a fault.
func (b *bench) noGPUErrors() {
	b.T.Helper()
	if errs := b.Sim.State().Errors; len(errs) > 0 {
		b.T.Errorf("gpu errors: %+v", errs)
	}
}

var movedVMA = regexp.MustCompile(`UPDATE_VMA_MAP (\S+) addr=\S+ (\S+) -> (\S+) ret=(-?\d+)`)

func TestDumpAndRestore(t *testing.T) {
	for _, tc := range []struct {
		name   string
		procs  int
		copyBy string
		gpus   []kfdsim.GPU
		args   []string
	}{
		{name: "one process", procs: 1, gpus: []kfdsim.GPU{{}, {}}},
		{name: "own event page, sdma", procs: 1, copyBy: "sdma", gpus: []kfdsim.GPU{{Model: "mi210"}},
			args: []string{"--own-event-page", "--max-bo", "1048576"}},
		{name: "three processes", procs: 3, gpus: []kfdsim.GPU{{Model: "mi50", Hive: 7}, {Model: "mi50", Hive: 7}},
			args: []string{"--max-bo", "1048576"}},
		{name: "sdma of every generation", procs: 1, copyBy: "sdma", args: []string{"--max-bo", "1048576"},
			gpus: []kfdsim.GPU{{Model: "polaris"}, {Model: "navi21"}, {Model: "navi31"}, {Model: "navi48"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, kfdsim.Options{GPUs: tc.gpus})
			b.copyBy = tc.copyBy
			app := b.StartApp(tc.procs, append(tc.args, "--interval", "1")...)
			bos := 0
			for _, p := range b.Sim.State().Processes {
				bos += p.BOs
			}
			if bos < 64*tc.procs {
				t.Fatalf("application has %d bos", bos)
			}
			b.dump(app)
			b.WaitVRAMFree()
			b.restore()
			app.WaitRounds(2)
			b.noGPUErrors()

			for hook, want := range map[string]int{
				"PAUSE_DEVICES": tc.procs, "CHECKPOINT_DEVICES": tc.procs,
				"DUMP_EXT_FILE":     tc.procs * (1 + len(tc.gpus)),
				"HANDLE_DEVICE_VMA": tc.procs, "RESTORE_EXT_FILE": tc.procs * (1 + len(tc.gpus)),
				"UPDATE_VMA_MAP": 20 * tc.procs,
				"POST_FORKING":   1, "RESUME_DEVICES_LATE": tc.procs, "exit stage=0 ret=0": 1, "exit stage=2 ret=0": 1,
			} {
				if got := len(b.hookLines(hook)); got < want {
					t.Errorf("hook %s fired %d times, expected %d or more", hook, got, want)
				}
			}
			moved := 0
			for _, line := range b.hookLines("UPDATE_VMA_MAP") {
				m := movedVMA.FindStringSubmatch(line)
				if m == nil {
					t.Fatalf("plugin noted %q", line)
				}
				if strings.Contains(m[1], "renderD") {
					if m[4] != "1" || m[2] == m[3] {
						t.Errorf("mapping has not moved: %s", line)
					}
					moved++
				}
			}
			if moved < 20*tc.procs {
				t.Errorf("%d mappings moved", moved)
			}
			app.Kill()
		})
	}
}

// A process restored on other GPUs keeps the gpu ids it knows.
func TestRestoreOnOtherGPUs(t *testing.T) {
	b := newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{ID: 1001}, {ID: 1002}}})
	app := b.StartApp(2, "--interval", "1", "--max-bo", "1048576")
	b.dump(app)
	b.Replace(kfdsim.Options{CPUNodes: 2, GPUs: []kfdsim.GPU{
		{ID: 2001, RenderMinor: 130, VRAM: 8 << 30, NUMANode: 1}, {ID: 2002, RenderMinor: 131, VRAM: 8 << 30}}})
	b.restore()
	app.WaitRounds(2)
	b.noGPUErrors()
	for _, bo := range b.Sim.BOs(false) {
		if bo.UserID != bo.GPU-1000 {
			t.Fatalf("bo on gpu %d is on gpu %d for the process", bo.GPU, bo.UserID)
		}
	}
	app.Kill()
}

// A dump that leaves the application alone pauses its queues and lets them go.
func TestDumpLeaveRunning(t *testing.T) {
	b := newBench(t, kfdsim.Options{})
	app := b.StartApp(2, "--interval", "1", "--max-bo", "1048576")
	for range 2 {
		if err := b.criu("dump", "-R", "-t", fmt.Sprint(app.PID)); err != nil {
			t.Fatal(err)
		}
		app.WaitRounds(1)
	}
	for _, p := range b.Sim.State().Processes {
		if p.Evictions != 0 {
			t.Errorf("process %d: queues stand still after the dump", p.PID)
		}
	}
	b.noGPUErrors()
	app.Kill()
}

// A restore that the driver refuses fails as a whole and leaves nothing.
func TestRefusedRestore(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault kfdsim.Fault
		want  string
	}{
		{"restore", kfdsim.Fault{Kind: kfdsim.FaultIoctl, Request: abi.KFDIocCRIUOp.String(), Errno: 22, Count: 1},
			"RESTORE: Invalid argument"},
		{"submission hangs", kfdsim.Fault{Kind: kfdsim.FaultDMA, After: 20, Count: 1}, "WAIT_CS: Timer expired"},
		{"mapping lost", kfdsim.Fault{Kind: kfdsim.FaultMapping, After: 30, Count: 1}, "WAIT_CS: Timer expired"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}}})
			b.copyBy = "sdma"
			app := b.StartApp(1, "--interval", "1", "--max-bo", "262144")
			b.dump(app)
			if err := b.Sim.Inject(tc.fault); err != nil {
				t.Fatal(err)
			}
			if err := b.criu("restore", "-d"); err == nil {
				t.Fatal("restore succeeded")
			}
			if got := strings.Join(b.hookLines(""), "\n"); !strings.Contains(got, tc.want) {
				t.Errorf("plugin noted %s\nwithout %q", got, tc.want)
			}
			if n := b.Sim.ClearFaults(); n != 1 {
				t.Errorf("fault struck %d times", n)
			}
			app.WaitGone()
			b.WaitVRAMFree()
			b.restore()
			app.WaitRounds(1)
			app.Kill()
		})
	}
}

// Queues of an evicted process stand still, then go on.
func TestEviction(t *testing.T) {
	r := rig.New(t, kfdsim.Options{})
	app := r.StartApp(1, "--interval", "0", "--max-bo", "262144")
	for range 5 {
		if err := r.Sim.Evict(app.PID, 100*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	app.WaitRounds(1)
	app.Kill()
}
