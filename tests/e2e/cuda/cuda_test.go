package cuda

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/cuda/cudasim"
)

func TestDumpAndRestore(t *testing.T) {
	r := start(t, cudasim.Options{Processes: 2, GPUs: 2})
	if got := len(r.vram()); got != 2 {
		t.Fatalf("the first process has memory on %d GPUs, want 2", got)
	}
	r.ok("dump", r.store, "one", "-t", r.pid())
	r.gone()
	if left := r.vram(); len(left) > 0 {
		t.Fatalf("dumped, and still on the GPU: %v", left)
	}
	out := r.ok("check", r.store, "one")
	for _, want := range []string{"the processes use CUDA", "CUDA 13.0, 2 GPUs",
		"GPU-63756461-7369-6d00-0000-000000000001 Simulated GPU, 1.0 GiB"} {
		if !strings.Contains(out, want) {
			t.Errorf("check does not say %q: %s", want, out)
		}
	}
	for range 2 { // the second follows a profile
		marks := r.restored("one")
		for _, m := range []string{"resume", "gpu ready", "resident"} {
			if !slices.Contains(marks, m) {
				t.Errorf("the timeline has no %q: %v", m, marks)
			}
		}
		r.states(cuda.Running)
		r.verify()
		must(t, r.app.Kill())
	}
}

func TestLeaveRunning(t *testing.T) {
	r := start(t, cudasim.Options{Processes: 2})
	r.ok("dump", r.store, "one", "-t", r.pid(), "--leave-running")
	r.states(cuda.Running)
	r.verify()
	must(t, r.app.Kill())
	r.restored("one")
	r.verify()
}

// A dump whose criu is killed midway leaves the application running and correct, and no checkpoint; also where the
// driver takes back the addresses at which criu's code was left in the process.
func TestDumpKilled(t *testing.T) {
	const room = 256 // MiB, the highest that there are: what criu maps lies there
	r := start(t, cudasim.Options{MiB: 128, Processes: 2, Room: room})
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	const kills = 5 // not each leaves a thread in criu's code
	for killed, try := 0, 0; killed < kills; try++ {
		if try == 20+kills {
			t.Fatal("criu was always faster than the one who should kill it")
		}
		name := "killed-" + string(rune('a'+try))
		var said strings.Builder
		cmd := r.prepare(ctx, "gpucr-fs", "dump", r.store, name, "-t", r.pid(), "--leave-running")
		cmd.Stderr = &said
		must(t, cmd.Start())
		type end struct {
			killed bool
			err    error
		}
		ended := make(chan end, 1)
		go func() {
			killed, err := killCRIU(ctx, r.work(cmd))
			ended <- end{killed, err}
		}()
		err := cmd.Wait()
		kill := <-ended
		must(t, kill.err)
		r.states(cuda.Running)
		r.verify()
		if kill.killed {
			if err == nil {
				t.Error("a dump succeeds although its criu was killed")
			}
			if out := r.ok("ls", r.store); strings.Contains(out, name) {
				t.Errorf("the failed dump left a checkpoint: %s", out)
			}
			killed++
			continue
		}
		t.Logf("try %d: %v: %s", try, err, &said)
	}
	r.ok("dump", r.store, "after", "-t", r.pid())
	r.gone()
	r.restored("after")
	r.verify()
}

func TestDumpFails(t *testing.T) {
	for _, tc := range []struct {
		name, say string
		flags     []string
		words     []string
	}{
		{"driver", "fail checkpoint 2", nil, []string{"checkpoint of process", "CUDA_ERROR_OUT_OF_MEMORY"}},
		{"work", "work 20000", []string{"--gpu-timeout", "200ms"},
			[]string{"did not end in time", "hint: ", "--gpu-timeout"}},
		{"left alone", "ask 1", []string{"--no-gpu"}, []string{"criu dump"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := start(t, cudasim.Options{Processes: 2})
			if _, err := r.app.Say(1, tc.say, timeout); err != nil {
				t.Fatal(err)
			}
			r.fails(append([]string{"dump", r.store, "one", "-t", r.pid()}, tc.flags...), tc.words...)
			r.states(cuda.Running)
			r.verify()
			if out := r.ok("ls", r.store); strings.Contains(out, "one") {
				t.Errorf("the failed dump left a checkpoint: %s", out)
			}
		})
	}
}

// A child that was forked after CUDA was used has the parent's devices open, which nobody can dump. Told to leave them,
// dump refuses before the GPU is touched.
func TestForkedChild(t *testing.T) {
	r := start(t, cudasim.Options{})
	line, err := r.app.Say(0, "fork", timeout)
	must(t, err)
	child := strings.TrimPrefix(line, "ok ")
	// If the GPU were touched, that would fail with an error.
	if _, err := r.app.Say(0, "fail lock 2", timeout); err != nil {
		t.Fatal(err)
	}
	r.fails([]string{"dump", r.store, "one", "-t", r.pid(), "--keep-inherited"}, "process "+child,
		"CUDA does not survive fork", "cannot be dumped")
	out, said, err := r.command("gpucr-fs", "check", "--pid", r.pid())
	if err != nil || !strings.Contains(out, "note: process "+child) || !strings.Contains(out, "dump takes care of it") {
		t.Errorf("check: %v: %s%s", err, out, said)
	}
	// The failure that was asked for is still to come.
	if _, said, err := r.command("cuda-checkpoint", "--action", "lock", "--pid", r.pid()); err == nil ||
		!strings.Contains(said, "CUDA_ERROR_OUT_OF_MEMORY") {
		t.Errorf("the GPU was touched: %v: %s", err, said)
	}
	pid, err := strconv.Atoi(child)
	must(t, err)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	r.verify()
	r.ok("dump", r.store, "one", "-t", r.pid(), "--leave-running")
	r.verify()
}

func TestOtherGPUs(t *testing.T) {
	r := start(t, cudasim.Options{GPUs: 2})
	r.ok("dump", r.store, "one", "-t", r.pid())
	r.gone()
	const one, two, missing = "GPU-63756461-7369-6d00-0000-000000000000", "GPU-63756461-7369-6d00-0000-000000000001",
		"GPU-63756461-7369-6d00-0000-000000000009"
	// A process without its GPU is ended.
	r.fails([]string{"restore", r.store, "one", "--device-map", one + "=" + missing}, "CUDA_ERROR_INVALID_DEVICE")
	r.gone()
	r.fails([]string{"restore", r.store, "one", "--device-map", "one=two"}, "no GPU UUID")
	r.restored("one", "--device-map", one+"="+two+","+two+"="+one)
	r.verify()
}

// Where the GPU of the checkpoint is not shown another of its kind stands in for it, and restore says so.
func TestStandIn(t *testing.T) {
	r := start(t, cudasim.Options{Idle: 1})
	const hide, first, second = "CUDA_VISIBLE_DEVICES", "GPU-63756461-7369-6d00-0000-000000000000",
		"GPU-63756461-7369-6d00-0000-000000000001"
	t.Setenv(hide, first)
	r.ok("dump", r.store, "one", "-t", r.pid())
	r.gone()
	t.Setenv(hide, second)
	_, said, err := r.command("gpucr-fs", "restore", r.store, "one", "--wait")
	if want := second + " stands in for " + first; err != nil || !strings.Contains(said, want) {
		t.Fatalf("restore: %v: %s; want %q", err, said, want)
	}
	r.verify()
	if names := r.vram(); len(names) != 1 || !strings.HasSuffix(names[0], ".1") {
		t.Errorf("its memory is in %v", names)
	}
}

// The tool answers as CRIU's cuda_plugin wants it.
func TestTool(t *testing.T) {
	r := start(t, cudasim.Options{})
	tool := func(want string, args ...string) {
		t.Helper()
		out, said, err := r.command("cuda-checkpoint", append(args, "--pid", r.pid())...)
		if err != nil || out != want {
			t.Errorf("cuda-checkpoint %v: %q, %v: %s; want %q", args, out, err, said, want)
		}
	}
	tool("running\n", "--get-state")
	tool("", "--action", "lock", "--timeout", "10000")
	tool("locked\n", "--get-state")
	tool("", "--action", "checkpoint")
	tool("checkpointed\n", "--get-state")
	tool("", "--action", "restore")
	tool("", "--action", "unlock")
	tool("running\n", "--get-state")
	tool("", "--toggle")
	tool("checkpointed\n", "--get-state")
	tool("", "--toggle")
	r.verify()
	out, said, err := r.command("cuda-checkpoint", "--get-restore-tid", "-p", r.pid())
	if tid := strings.TrimSpace(out); err != nil || tid == "" {
		t.Errorf("restore thread %q, %v: %s", out, err, said)
	} else if _, err := os.Stat(filepath.Join("/proc", r.pid(), "task", tid)); err != nil {
		t.Errorf("the restore thread is none of the process: %v", err)
	}
	out, _, err = r.command("cuda-checkpoint", "-h")
	if head := out[:min(len(out), 2000)]; err != nil || !strings.Contains(head, "--action") ||
		!strings.Contains(head, "--get-restore-tid") {
		t.Errorf("cuda-checkpoint -h: %v: %q", err, out)
	}
	for _, args := range [][]string{
		{"--get-restore-tid", "--pid", "1"}, {"--get-state", "--pid", "1"}, {"--action", "unlock", "--pid", r.pid()},
		{"--action", "sleep", "--pid", r.pid()}, {"--get-state"},
		{"--pid", r.pid()}, {"--get-state", "--toggle", "--pid", r.pid()},
	} {
		if out, _, err := r.command("cuda-checkpoint", args...); err == nil {
			t.Errorf("cuda-checkpoint %v succeeds: %q", args, out)
		}
	}
	if _, err := r.app.Say(0, "work 20000", timeout); err != nil {
		t.Fatal(err)
	}
	if _, said, err := r.command("cuda-checkpoint", "--action", "lock", "--pid", r.pid(), "--timeout",
		"100"); err == nil || !strings.Contains(said, "CUDA_ERROR_NOT_READY") {
		t.Errorf("lock of a process at work: %v: %s", err, said)
	}
}

// Without NVIDIA's driver nothing of it is loaded, the commands say so plainly, and processes without a GPU are dumped
// and restored as ever.
func TestWithoutDriver(t *testing.T) {
	r := start(t, cudasim.Options{})
	alone := t.TempDir()
	// gpucr-cuda is not there: who started it would fail.
	must(t, os.Link(filepath.Join(dir, "gpucr-fs"), filepath.Join(alone, "gpucr-fs")))
	command := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		cmd := r.prepare(ctx, "gpucr-fs", args...)
		cmd.Path = filepath.Join(alone, "gpucr-fs")
		cmd.Env = slices.DeleteFunc(cmd.Env, func(e string) bool { return strings.HasPrefix(e, "GPUCR_FS_LIBCUDA=") })
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if cuda.Present() {
		t.Log("this machine has NVIDIA's driver; what is said without it cannot be seen here")
		return
	}
	for _, args := range [][]string{{"cuda-checkpoint", "--get-state", "--pid", r.pid()},
		{"dump", r.store, "one", "-t", r.pid()}} {
		if out, err := command(args...); err == nil || !strings.Contains(out, "no NVIDIA driver on this machine") {
			t.Errorf("%v: %v: %s", args, err, out)
		}
	}
	r.states(cuda.Running)
	r.verify()
	r.ok("dump", r.store, "cuda", "-t", r.pid(), "--leave-running")
	if out, err := command("check", r.store, "cuda"); err == nil ||
		!strings.Contains(out, "the processes use CUDA, and this machine has no NVIDIA driver") {
		t.Errorf("check: %v: %s", err, out)
	}
	idle := exec.Command("sleep", "600")
	idle.SysProcAttr = session()
	must(t, idle.Start())
	other := &cudasim.Target{PID: idle.Process.Pid}
	go idle.Wait()
	defer func() {
		if err := other.Kill(); err != nil {
			t.Error(err)
		}
	}()
	if out, err := command("dump", r.store, "idle", "-t", pidOf(other)); err != nil {
		t.Fatalf("dump of a process without a GPU: %v: %s", err, out)
	}
	must(t, other.Gone(timeout))
	if out, err := command("check", r.store, "idle"); err != nil ||
		!strings.Contains(out, "this machine has no NVIDIA driver") {
		t.Errorf("check: %v: %s", err, out)
	}
	if out, err := command("restore", r.store, "idle", "--wait"); err != nil || strings.Contains(out, "gpu ready") {
		t.Fatalf("restore of a process without a GPU: %v: %s", err, out)
	}
}
