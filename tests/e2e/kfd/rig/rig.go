// Package rig sets up what a dump and a restore of a GPU application need on a
// machine without a GPU: the simulator, a mount namespace where its files are
// the devices, the test application, and criu with the shim.
//
// The simulator runs in the test's process. A holder process keeps the mount
// namespace; everything else enters it with nsenter. Processes that a test
// started are ended, by their pids, when the test ends.
package rig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/tests/gpuapp"
)

// Rig is one simulated machine with a place for files.
type Rig struct {
	T   testing.TB
	Sim *kfdsim.Sim
	// Dir is where a test keeps images and status files; it outlives Replace.
	Dir  string
	Shim string
	App  string // the test application
	CRIU string
	Root string // of the module

	simDir string
	holder *exec.Cmd
	quit   io.Closer
}

// built is what the tests of one binary compile once: folders by name.
var built struct {
	mu   sync.Mutex
	dir  string
	have map[string]string
}

// Built returns a folder that build has filled, on the first call for a name.
// It stays until RemoveBuilt.
func (r *Rig) Built(name string, build func(dir string) error) string {
	r.T.Helper()
	built.mu.Lock()
	defer built.mu.Unlock()
	if dir, ok := built.have[name]; ok {
		return dir
	}
	if built.dir == "" {
		var err error
		if built.dir, err = os.MkdirTemp("", "kfdrig-"); err != nil {
			r.T.Fatal(err)
		}
		built.have = map[string]string{}
	}
	dir := filepath.Join(built.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
		r.T.Fatal(err)
	}
	if err := build(dir); err != nil {
		r.T.Fatal(err)
	}
	built.have[name] = dir
	return dir
}

// RemoveBuilt removes what Built made; TestMain calls it last.
func RemoveBuilt() error { return os.RemoveAll(built.dir) }

// New starts a machine. Options.Dir is chosen here.
func New(t testing.TB, opts kfdsim.Options) *Rig {
	t.Helper()
	r := &Rig{T: t, Dir: t.TempDir(), Root: moduleRoot(t)}
	r.CRIU = os.Getenv("CRIU")
	if r.CRIU == "" {
		r.CRIU = filepath.Join(r.Root, "build/criu/criu")
	}
	if _, err := os.Stat(r.CRIU); err != nil {
		t.Fatalf("no criu at %s\nhint: run make criu, or name one in $CRIU", r.CRIU)
	}
	r.App = filepath.Join(r.Built("gpuapp", func(dir string) error {
		return gpuapp.Build(r.Root, filepath.Join(dir, "gpuapp"))
	}), "gpuapp")
	r.start(opts)
	t.Cleanup(r.stop)
	return r
}

// Replace ends the machine and starts another one, as a restore on other
// hardware sees it. No process may use the devices.
func (r *Rig) Replace(opts kfdsim.Options) {
	r.T.Helper()
	r.stop()
	r.start(opts)
}

func (r *Rig) start(opts kfdsim.Options) {
	r.T.Helper()
	var err error
	if r.simDir, err = os.MkdirTemp("", "kfdsim-"); err != nil {
		r.T.Fatal(err)
	}
	opts.Dir = r.simDir
	if opts.DoorbellPoll == 0 {
		opts.DoorbellPoll = 100 * time.Microsecond
	}
	if r.Sim, err = kfdsim.Start(opts); err != nil {
		r.T.Fatal(err)
	}
	if r.Shim, err = r.Sim.BuildShim(os.Getenv("CC")); err != nil {
		r.T.Fatal(err)
	}
	// The holder lives as long as its standard input.
	r.holder = exec.Command(filepath.Join(r.simDir, kfdsim.EnterScript), r.simDir, "sh", "-c", "echo ready; exec cat")
	r.holder.Stderr = os.Stderr
	// A signal of the terminal's is not for the holder: cleaning up needs it.
	r.holder.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := r.holder.StdinPipe()
	if err != nil {
		r.T.Fatal(err)
	}
	r.quit = in
	out, err := r.holder.StdoutPipe()
	if err != nil {
		r.T.Fatal(err)
	}
	if err := r.holder.Start(); err != nil {
		r.T.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		r.T.Fatalf("mount namespace with the devices: %v", err)
	}
}

func (r *Rig) stop() {
	r.T.Helper()
	if r.holder == nil {
		return
	}
	r.quit.Close()
	if err := r.holder.Wait(); err != nil {
		r.T.Errorf("holder of the mount namespace: %v", err)
	}
	r.holder = nil
	if err := r.Sim.Close(); err != nil {
		r.T.Error(err)
		return
	}
	if err := os.RemoveAll(r.simDir); err != nil {
		r.T.Error(err)
	}
}

// Command prepares a program that sees the devices, in Dir. It changes there
// inside the namespace: criu wants to know the mount of a working directory.
func (r *Rig) Command(name string, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"-t", strconv.Itoa(r.holder.Process.Pid), "-m", "--",
		"sh", "-c", `cd "$0" && exec "$@"`, r.Dir, name}, args...)...)
}

// Application is a running test application.
type Application struct {
	rig   *Rig
	PID   int
	Dir   string // of the status files
	procs int
	pids  []int         // of the tree; a restore needs them free
	done  chan struct{} // the started process was reaped
}

// StartApp starts the test application with procs processes in a session of
// its own, and waits until each has looked at every BO once.
func (r *Rig) StartApp(procs int, args ...string) *Application {
	r.T.Helper()
	a := r.BeginApp(procs, args...)
	a.WaitRounds(1)
	return a
}

// BeginApp is StartApp, but waits only until each process has looked at one of its BOs: all of thousands take minutes.
func (r *Rig) BeginApp(procs int, args ...string) *Application {
	r.T.Helper()
	dir, err := os.MkdirTemp(r.Dir, "app-")
	if err != nil {
		r.T.Fatal(err)
	}
	// The standard files are opened inside the namespace: criu looks for their
	// mounts there.
	script := `exec setsid "$@" </dev/null >>"$0" 2>&1`
	cmd := r.Command("sh",
		append([]string{"-c", script, filepath.Join(dir, "log"), r.App, "--dir", dir, "--procs", strconv.Itoa(procs)},
			args...)...)
	if err := cmd.Start(); err != nil {
		r.T.Fatal(err)
	}
	a := &Application{rig: r, PID: cmd.Process.Pid, Dir: dir, procs: procs, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		cmd.Wait() // killed, by the test or by criu
	}()
	r.T.Cleanup(a.Kill)
	a.await(func(_, tick, _ int) bool { return tick > 0 })
	a.pids = tree(a.PID)
	return a
}

// Status returns the tick and the round a process has reached.
func (a *Application) Status(proc int) (tick, round int, err error) {
	b, err := os.ReadFile(filepath.Join(a.Dir, fmt.Sprintf("status.%d", proc)))
	if err != nil {
		return 0, 0, err
	}
	line := strings.TrimSpace(string(b))
	if strings.HasPrefix(line, "FAIL") {
		return 0, 0, errors.New(line)
	}
	fmt.Sscanf(line, "tick %d round %d ok", &tick, &round) // 0, 0 while it starts
	return tick, round, nil
}

// waitLimit bounds waiting for the application; a round takes a second or two.
const waitLimit = 120 * time.Second

// WaitRounds waits until every process has verified all its BOs n times more,
// and fails the test when one reports a failure.
func (a *Application) WaitRounds(n int) {
	t := a.rig.T
	t.Helper()
	want := make([]int, a.procs)
	for i := range want {
		_, round, err := a.Status(i)
		if err != nil && !os.IsNotExist(err) {
			t.Fatalf("process %d: %v\n%s", i, err, a.log())
		}
		// A round under way began before; the next one is whole.
		want[i] = round + n + 1
		if round == 0 {
			want[i] = n
		}
	}
	a.await(func(proc, _, round int) bool { return round >= want[proc] })
}

// await waits until all processes have come far enough.
func (a *Application) await(far func(proc, tick, round int) bool) {
	t := a.rig.T
	t.Helper()
	deadline := time.Now().Add(waitLimit)
	for i := range a.procs {
		for {
			tick, round, err := a.Status(i)
			if err != nil && !os.IsNotExist(err) {
				t.Fatalf("process %d: %v\n%s", i, err, a.log())
			}
			if far(i, tick, round) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("process %d stands at tick %d round %d\n%s\nsimulator: %+v", i, tick, round, a.log(),
					a.rig.Sim.State())
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

func (a *Application) log() string {
	b, err := os.ReadFile(filepath.Join(a.Dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Kill ends the application, restored or not, and waits until it is gone.
func (a *Application) Kill() {
	a.rig.T.Helper()
	for _, pid := range tree(a.PID) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			a.rig.T.Errorf("kill %d: %v", pid, err)
		}
	}
	a.waitUntil(func() bool { return false })
}

// WaitGone waits until no process of the application is left, nor a zombie that
// still has its pid, and the simulator has noticed: a restore can begin.
func (a *Application) WaitGone() {
	a.rig.T.Helper()
	a.waitUntil(func() bool {
		return slices.ContainsFunc(a.pids, func(pid int) bool { return syscall.Kill(pid, 0) == nil })
	})
}

// waitUntil waits until the application has ended and nothing is left.
func (a *Application) waitUntil(left func() bool) {
	a.rig.T.Helper()
	<-a.done
	deadline := time.Now().Add(waitLimit)
	for left() || len(tree(a.PID)) > 0 || len(a.rig.Sim.State().Processes) > 0 {
		// Restored ones are this process's children if it is a subreaper.
		for _, pid := range a.pids {
			syscall.Wait4(pid, nil, syscall.WNOHANG, nil) // or somebody else's to wait for
		}
		if time.Now().After(deadline) {
			a.rig.T.Fatalf("processes left: %v of %v, in the simulator %+v", tree(a.PID), a.pids,
				a.rig.Sim.State().Processes)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// WaitVRAMFree waits until no VRAM is in use: who held the last reference to a
// buffer object may be a moment later than its process.
func (r *Rig) WaitVRAMFree() {
	r.T.Helper()
	deadline := time.Now().Add(waitLimit)
	for i := range r.Sim.State().GPUs {
		for used := int64(1); used != 0; time.Sleep(10 * time.Millisecond) {
			if used = int64(r.Sim.State().GPUs[i].VRAMUsed); used != 0 && time.Now().After(deadline) {
				r.T.Errorf("gpu %d: %d bytes of vram in use with no process left", i, used)
				return
			}
		}
	}
}

// tree returns a process and its descendants that have not ended, the process
// itself first.
func tree(root int) []int {
	parents := map[int]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(f) < 2 || f[0] == "Z" || f[0] == "X" {
			continue
		}
		if parents[pid], err = strconv.Atoi(f[1]); err != nil {
			continue
		}
	}
	var out []int
	for pid := range parents {
		for at := pid; at > 1; at = parents[at] {
			if at == root {
				out = append(out, pid)
				break
			}
		}
	}
	slices.Sort(out)
	return out
}

// Criu runs criu in the namespace with the shim. env is added to its
// environment, and reaches the plugin.
func (r *Rig) Criu(env []string, args ...string) error {
	cmd := r.Command("env",
		append(append([]string{"LD_PRELOAD=" + r.Shim}, env...), append([]string{r.CRIU}, args...)...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("criu %s: %w: %s", args[0], err, out)
	}
	return nil
}

// ErrorLines returns the lines of a criu log that tell of errors.
func ErrorLines(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "Error") || strings.Contains(line, "Warn") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

func moduleRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatal("no go.mod above the test")
	return ""
}
