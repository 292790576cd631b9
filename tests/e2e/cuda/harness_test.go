package cuda

import (
	"bytes"
	"context"
	"encoding/json"
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

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/cuda/cudasim"
	"github.com/gpucr/gpucr-fs/tests/actors"
	"github.com/gpucr/gpucr-fs/tests/cli"
)

const timeout = 2 * time.Minute

// What all tests share: the simulated driver and the programs, in one folder.
var (
	sim *cudasim.Sim
	dir string
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	var err error
	if dir, err = os.MkdirTemp("", "cuda-e2e-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	if sim, err = cudasim.Build(dir); err != nil {
		return 1, err
	}
	defer sim.Close()
	for _, name := range []string{"gpucr-fs", "gpucr-cuda"} {
		if _, err := cudasim.BuildCommand(dir, name); err != nil {
			return 1, err
		}
	}
	if err := os.Symlink("gpucr-fs", filepath.Join(dir, "cuda-checkpoint")); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// criuProgram finds the program that `make criu` provides.
func criuProgram(t *testing.T) string {
	t.Helper()
	if p := os.Getenv("CRIU"); p != "" {
		return p
	}
	out, err := exec.Command("go", "env", "GOMOD").Output()
	must(t, err)
	p := filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "build", "criu", "criu")
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("no criu: %v; run make criu, or set CRIU", err)
	}
	return p
}

// rig is one test's store and application.
type rig struct {
	t     *testing.T
	store string
	gpus  cudasim.Options
	app   *cudasim.Target
	want  []string // the processes' answers
}

// start makes a store and starts an application, and learns its answers.
func start(t *testing.T, o cudasim.Options) *rig {
	t.Helper()
	r := &rig{t: t, store: filepath.Join(t.TempDir(), "store"), gpus: o}
	// A socket's path has 107 bytes.
	socks, err := os.MkdirTemp("", "cuda-app-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(socks) })
	r.app, err = sim.Start(socks, o)
	must(t, err)
	t.Cleanup(func() {
		if err := r.app.Kill(); err != nil {
			t.Error(err)
		}
		r.quiet()
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(r.store, "daemon.log"))
			t.Logf("the daemon's log:\n%s", log)
		}
	})
	for i := range max(o.Processes, 1) {
		r.want = append(r.want, r.ask(i))
	}
	r.ok("init", r.store)
	return r
}

// ask gives process i's answer.
func (r *rig) ask(i int) string {
	r.t.Helper()
	s, _, err := r.app.Ask(i, 7, timeout)
	must(r.t, err)
	return s
}

// verify compares all processes' answers with those of the beginning.
func (r *rig) verify() {
	r.t.Helper()
	for i, want := range r.want {
		if got := r.ask(i); got != want {
			r.t.Errorf("process %d answers %s, and %s before", i, got, want)
		}
	}
}

// command runs one of the programs until timeout ends.
func (r *rig) command(name string, args ...string) (stdout, stderr string, err error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	cmd := r.prepare(ctx, name, args...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err = cmd.Run()
	if ctx.Err() != nil {
		r.t.Fatalf("%s %v does not end: %s%s", name, args, &out, &said)
	}
	if errors.Is(err, exec.ErrWaitDelay) { // a daemon holds its standard error
		err = nil
	}
	return out.String(), said.String(), err
}

func (r *rig) prepare(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(dir, name), args...)
	cmd.Env = append(append(cmd.Environ(), sim.Env(r.gpus)...), "GPUCR_FS_LIBCUDA="+sim.Library,
		"GPUCR_FS_CRIU="+criuProgram(r.t), "GPUCR_FS_FREE_FLOOR=1MiB")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) } // it tells where it stands
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// ok runs gpucr-fs, which must succeed, and gives what it prints.
func (r *rig) ok(args ...string) string {
	r.t.Helper()
	out, said, err := r.command("gpucr-fs", args...)
	if err != nil {
		r.t.Fatalf("gpucr-fs %v: %v: %s", args, err, said)
	}
	return out
}

// fails runs gpucr-fs, which must fail and say each of the words.
func (r *rig) fails(args []string, words ...string) {
	r.t.Helper()
	out, said, err := r.command("gpucr-fs", args...)
	if err == nil {
		r.t.Fatalf("gpucr-fs %v succeeds: %s", args, out)
	}
	for _, w := range words {
		if !strings.Contains(said, w) {
			r.t.Errorf("gpucr-fs %v says %q, and nothing of %q", args, said, w)
		}
	}
}

func (r *rig) pid() string { return strconv.Itoa(r.app.PID) }

// states checks where all processes stand with the driver.
func (r *rig) states(want cuda.State) {
	r.t.Helper()
	pids, err := cuda.Tree(r.app.PID)
	must(r.t, err)
	for _, pid := range pids {
		out, said, err := r.command("cuda-checkpoint", "--get-state", "--pid", strconv.Itoa(pid))
		if err != nil || out != want.String()+"\n" {
			r.t.Errorf("process %d is %q, %v: %s; want %v", pid, out, err, said, want)
		}
	}
}

// vram lists what the application has on the GPUs.
func (r *rig) vram() []string {
	names, err := filepath.Glob(filepath.Join(sim.Dir, "vram."+r.pid()+".*"))
	must(r.t, err)
	return names
}

// restored runs gpucr-fs restore until all is there, and gives the names of the timeline's marks.
func (r *rig) restored(name string, flags ...string) []string {
	r.t.Helper()
	var res struct {
		Timeline struct {
			PID   int
			Marks []struct{ Name string }
		}
	}
	must(r.t, json.Unmarshal([]byte(r.ok(append([]string{"restore", r.store, name, "--wait", "--json"}, flags...)...)),
		&res))
	if res.Timeline.PID != r.app.PID {
		r.t.Fatalf("restored as process %d, it was %d", res.Timeline.PID, r.app.PID)
	}
	var marks []string
	for _, m := range res.Timeline.Marks {
		marks = append(marks, m.Name)
	}
	return marks
}

// gone waits until the application's pids are free.
func (r *rig) gone() {
	r.t.Helper()
	must(r.t, r.app.Gone(timeout))
}

// quiet waits until the store's daemon has ended.
func (r *rig) quiet() {
	r.t.Helper()
	for end := time.Now().Add(timeout); ; time.Sleep(10 * time.Millisecond) {
		if cli.DaemonEnded(r.store) {
			return
		}
		if time.Now().After(end) {
			r.t.Error("the store's daemon does not end")
			return
		}
	}
}

// work is what is known of a dump that command cmd does.
func (r *rig) work(cmd *exec.Cmd) *actors.Dump {
	return &actors.Dump{
		PID:    cmd.Process.Pid,
		Target: r.app.PID,
		Store:  r.store,
		Holder: filepath.Join(dir, "gpucr-cuda"),
	}
}

// killCRIU kills the criu of a dump while it writes memory. False when criu was faster.
func killCRIU(ctx context.Context, d *actors.Dump) (bool, error) {
	for ctx.Err() == nil {
		if pid, err := d.Kill(actors.CRIU); pid != 0 || err != nil {
			return pid != 0, err
		}
		if _, err := cuda.Tree(d.PID); err != nil {
			return false, nil // it has ended
		}
		time.Sleep(time.Millisecond)
	}
	return false, ctx.Err()
}

func session() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func pidOf(t *cudasim.Target) string { return strconv.Itoa(t.PID) }
