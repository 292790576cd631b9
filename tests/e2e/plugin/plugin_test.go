package plugin

import (
	"errors"
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

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/tests/e2e/kfd/rig"
)

func TestMain(m *testing.M) {
	// Restored processes become this one's children, to be waited for at once.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := rig.RemoveBuilt(); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	}))
}

// runLimit bounds every run of a program; they take seconds.
const runLimit = 3 * time.Minute

// bench is a rig with the plugin, gpucr-fs and a place for images.
type bench struct {
	*rig.Rig
	plugin, program, images string
	env                     []string // of criu, and so of the plugin
	inImages                bool     // criu works in the folder of the images
	runs                    int
}

func newBench(t *testing.T, opts kfdsim.Options) *bench {
	t.Helper()
	opts.CheckFills = true
	b := &bench{Rig: rig.New(t, opts)}
	b.images = filepath.Join(b.Dir, "images")
	if err := os.Mkdir(b.images, 0o755); err != nil {
		t.Fatal(err)
	}
	// As make install lays them out.
	prefix := b.Built("installed", func(dir string) error {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "bin/gpucr-fs"), "./cmd/gpucr-fs")
		cmd.Dir, cmd.Env = b.Root, append(os.Environ(), "CGO_ENABLED=0")
		return errors.Join(output(cmd),
			output(exec.Command(filepath.Join(b.Root, "scripts/plugin.sh"), filepath.Join(dir, "lib/gpucr-fs"))))
	})
	b.program, b.plugin = filepath.Join(prefix, "bin/gpucr-fs"), filepath.Join(prefix, "lib/gpucr-fs")
	return b
}

func output(cmd *exec.Cmd) error {
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", cmd.Path, err, msg)
	}
	return nil
}

// start starts a program with its output in a file: what it leaves running
// cannot keep the test waiting for a pipe.
func (b *bench) start(cmd *exec.Cmd) *run {
	b.T.Helper()
	b.runs++
	log := filepath.Join(b.Dir, fmt.Sprintf("run-%d", b.runs))
	out, err := os.Create(log)
	if err != nil {
		b.T.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	r := &run{cmd: cmd, log: log, done: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		b.T.Fatal(err)
	}
	go func() {
		r.err = cmd.Wait()
		close(r.done)
	}()
	b.T.Cleanup(func() {
		cmd.Process.Kill()
		<-r.done
	})
	return r
}

// run is a program under way.
type run struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error
}

// wait waits until the program has ended.
func (r *run) wait() error {
	select {
	case <-r.done:
	case <-time.After(runLimit):
		r.cmd.Process.Kill()
		<-r.done
		r.err = fmt.Errorf("stood for %v: %w", runLimit, r.err)
	}
	if r.err == nil {
		return nil
	}
	out, err := os.ReadFile(r.log)
	return errors.Join(fmt.Errorf("%s: %w: %s", r.cmd.Args[0], r.err, out), err)
}

// waitsForVRAM returns when a restore by criu has come to its late hook, in which it waits for VRAM.
func (b *bench) waitsForVRAM(t *testing.T, r *run) {
	t.Helper()
	for waits := false; !waits; {
		select {
		case <-r.done:
			t.Fatalf("criu did not wait:\n%s", b.criuLog("restore"))
		case <-time.After(time.Millisecond):
			said, err := os.ReadFile(filepath.Join(b.Dir, "work-restore/log"))
			waits = err == nil && strings.Contains(string(said), "Run late stage hook")
		}
	}
}

// startCriu starts criu on the images, with a log that is criuLog's.
func (b *bench) startCriu(args ...string) *run {
	b.T.Helper()
	env := append([]string{"LD_PRELOAD=" + b.Shim, "GPUCR_FS=" + b.program}, b.env...)
	work := filepath.Join(b.Dir, "work-"+args[0])
	if err := os.MkdirAll(work, 0o755); err != nil {
		b.T.Fatal(err)
	}
	in := work
	if b.inImages {
		in = b.images
	}
	args = append(args, "-D", b.images, "-W", in, "-L", b.plugin, "-v4", "-o", filepath.Join(work, "log"))
	return b.start(b.Command("env", append(append(env, b.CRIU), args...)...))
}

// criuLog returns what criu has logged last of an action.
func (b *bench) criuLog(action string) string {
	b.T.Helper()
	log, err := os.ReadFile(filepath.Join(b.Dir, "work-"+action, "log"))
	if err != nil {
		b.T.Fatal(err)
	}
	return string(log)
}

func (b *bench) criu(args ...string) error {
	b.T.Helper()
	if err := b.startCriu(args...).wait(); err != nil {
		return fmt.Errorf("criu %s: %w\n%s\nsimulator: %q", args[0], err,
			rig.ErrorLines(filepath.Join(b.Dir, "work-"+args[0], "log")), b.Sim.State().Refusals)
	}
	return nil
}

// dump dumps and lets criu end the application.
func (b *bench) dump(app *rig.Application) {
	b.T.Helper()
	if err := b.criu("dump", "-t", strconv.Itoa(app.PID)); err != nil {
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

// noGPUErrors fails the test when a GPU met a fault.
func (b *bench) noGPUErrors() {
	b.T.Helper()
	if errs := b.Sim.State().Errors; len(errs) > 0 {
		b.T.Errorf("gpu errors: %+v", errs)
	}
}

// helpers returns the plugin helpers of this bench that run.
func (b *bench) helpers() []int {
	b.T.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		b.T.Fatal(err)
	}
	var pids []int
	for _, e := range entries {
		exe, err := os.Readlink(filepath.Join(filepath.Dir(e), "exe"))
		if err != nil || exe != b.program {
			continue
		}
		line, err := os.ReadFile(e)
		if err != nil || !strings.Contains(string(line), "plugin-helper") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(e))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// noHelpers waits until no helper is left.
func (b *bench) noHelpers() {
	b.T.Helper()
	for deadline := time.Now().Add(time.Minute); len(b.helpers()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			for _, pid := range b.helpers() {
				syscall.Kill(pid, syscall.SIGKILL)
			}
			b.T.Fatal("a plugin helper outlives criu")
		}
	}
}

func TestDumpAndRestore(t *testing.T) {
	for _, tc := range []struct {
		name  string
		procs int
		gpus  []kfdsim.GPU
		args  []string
		env   []string
	}{
		{name: "two processes", procs: 2, gpus: []kfdsim.GPU{{}, {}}, args: []string{"--max-bo", "4194304"}},
		{name: "sequential", procs: 2, gpus: []kfdsim.GPU{{}}, args: []string{"--max-bo", "262144"},
			env: []string{"GPUCR_PARALLEL=0"}},
		{name: "own event page", procs: 1, gpus: []kfdsim.GPU{{Model: "mi210"}},
			args: []string{"--own-event-page", "--max-bo", "262144"},
			env:  []string{"GPUCR_VERIFY=all", "KFD_MAX_BUFFER_SIZE=1M"}},
		{name: "the least staging memory", procs: 1, gpus: []kfdsim.GPU{{}}, args: []string{"--max-bo", "262144"},
			env: []string{"KFD_MAX_BUFFER_SIZE=010000"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, kfdsim.Options{GPUs: tc.gpus})
			b.env = tc.env
			app := b.StartApp(tc.procs, append(tc.args, "--interval", "1")...)
			b.dump(app)
			b.noHelpers()
			b.WaitVRAMFree()
			b.restore()
			app.WaitRounds(1)
			b.noHelpers()
			b.noGPUErrors()
			app.Kill()
		})
	}
}
