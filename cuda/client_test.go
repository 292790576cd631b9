package cuda_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/cuda/cudasim"
)

const timeout = 2 * time.Minute

var (
	sim    *cudasim.Sim
	holder string
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
	dir, err := os.MkdirTemp("", "cuda")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	if sim, err = cudasim.Build(dir); err != nil {
		return 1, err
	}
	defer sim.Close()
	if holder, err = cudasim.BuildHolder(dir); err != nil {
		return 1, err
	}
	for _, e := range sim.Env(cudasim.Options{GPUs: 2}) {
		name, value, _ := strings.Cut(e, "=")
		os.Setenv(name, value)
	}
	code := m.Run()
	if err := goleak.Find(goleak.IgnoreTopFunction("os/exec.(*Cmd).Wait")); err != nil {
		return 1, err
	}
	return code, nil
}

func client(t *testing.T) *cuda.Client {
	t.Helper()
	c, err := cuda.Start(cuda.Options{Program: holder, Library: sim.Library,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func target(t *testing.T, o cudasim.Options) *cudasim.Target {
	t.Helper()
	a, err := sim.Start(t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Kill(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func ctx(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	return c
}

func wantState(t *testing.T, c *cuda.Client, pid int, want cuda.State) {
	t.Helper()
	got, err := c.State(ctx(t), pid)
	if err != nil || got != want {
		t.Fatalf("process %d is %v, %v; want %v", pid, got, err, want)
	}
}

func ask(t *testing.T, a *cudasim.Target, i int) string {
	t.Helper()
	s, _, err := a.Ask(i, 7, timeout)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStates(t *testing.T) {
	a := target(t, cudasim.Options{GPUs: 2})
	c := client(t)
	before := ask(t, a, 0)
	for _, step := range []struct {
		do   cuda.Action
		want cuda.State
	}{{cuda.Lock, cuda.Locked}, {cuda.Checkpoint, cuda.Checkpointed}, {cuda.Restore, cuda.Locked},
		{cuda.Unlock, cuda.Running}} {
		if err := c.Do(ctx(t), step.do, a.PID, time.Minute, nil); err != nil {
			t.Fatalf("%s: %v", step.do, err)
		}
		wantState(t, c, a.PID, step.want)
		vram, _ := filepath.Glob(filepath.Join(sim.Dir, fmt.Sprintf("vram.%d.*", a.PID)))
		if gone := step.want == cuda.Checkpointed; (len(vram) == 0) != gone {
			t.Fatalf("after %s its VRAM is %v", step.do, vram)
		}
	}
	if after := ask(t, a, 0); after != before {
		t.Errorf("the application answers %s, and %s before", after, before)
	}
	if err := c.Do(ctx(t), cuda.Unlock, a.PID, 0, nil); cuda.CodeOf(err) != cuda.CodeIllegalState {
		t.Errorf("unlock of a running process: %v", err)
	}
	if tid, err := c.RestoreThread(ctx(t), a.PID); err != nil || tid == a.PID || tid <= 0 {
		t.Errorf("restore thread %d, %v", tid, err)
	}
	if _, err := c.State(ctx(t), os.Getpid()); cuda.CodeOf(err) == 0 {
		t.Errorf("state of a process without CUDA: %v", err)
	}
}

func TestInfo(t *testing.T) {
	info, err := client(t).Info(ctx(t))
	if err != nil || info.CUDA != 13000 || len(info.Devices) != 2 || info.Devices[1].Name != "Simulated GPU" ||
		info.Devices[1].Memory != 1<<30 {
		t.Fatalf("%+v, %v", info, err)
	}
}

func TestNoLibrary(t *testing.T) {
	c, err := cuda.Start(cuda.Options{Program: holder, Library: "/nonexistent/libcuda.so.1",
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Info(ctx(t)); !errors.Is(err, cuda.ErrNoDriver) {
		t.Errorf("without a library: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestOldLibrary(t *testing.T) {
	libc := "libc.so.6"
	c, err := cuda.Start(cuda.Options{Program: holder, Library: libc, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Info(ctx(t)); !errors.Is(err, cuda.ErrTooOld) {
		t.Errorf("with a library without the interface: %v", err)
	}
}

func TestTree(t *testing.T) {
	a := target(t, cudasim.Options{Processes: 3})
	c := client(t)
	var before []string
	for i := range 3 {
		before = append(before, ask(t, a, i))
	}
	if used, err := cuda.Uses(a.PID); err != nil || !used {
		t.Fatalf("the tree is not seen to use CUDA: %v", err)
	}
	s, err := c.Suspend(ctx(t), a.PID, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Processes()) != 3 {
		t.Fatalf("suspended %v, want three processes", s.Processes())
	}
	for _, p := range s.Processes() {
		wantState(t, c, p.PID, cuda.Checkpointed)
	}
	if err := s.Undo(); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if got := ask(t, a, i); got != before[i] {
			t.Errorf("process %d answers %s, and %s before", i, got, before[i])
		}
	}
	if _, err := c.Suspend(ctx(t), a.PID, time.Minute); err != nil {
		t.Fatal(err)
	}
	if procs, err := c.Resume(ctx(t), a.PID, nil); err != nil || len(procs) != 3 {
		t.Fatalf("resumed %v, %v", procs, err)
	}
	for i := range 3 {
		if got := ask(t, a, i); got != before[i] {
			t.Errorf("after Resume, process %d answers %s, and %s before", i, got, before[i])
		}
	}
}

func TestTreeWithoutCUDA(t *testing.T) {
	if used, err := cuda.Uses(os.Getpid()); err != nil || used {
		t.Errorf("this test is said to use CUDA: %v, %v", used, err)
	}
	plain := exec.Command("sleep", "600")
	if err := plain.Start(); err != nil {
		t.Fatal(err)
	}
	defer plain.Wait()
	defer plain.Process.Kill()
	s, err := client(t).Suspend(ctx(t), plain.Process.Pid, time.Minute)
	if err != nil || len(s.Processes()) != 0 {
		t.Errorf("%v, %v", s, err)
	}
	if _, err := cuda.Tree(1 << 30); err == nil {
		t.Error("a tree whose root is not there is listed")
	}
}

// A step that fails for one process of a tree leaves all of them running.
func TestSuspendFails(t *testing.T) {
	for _, tc := range []struct {
		name, say string
		timeout   time.Duration
		code      int
	}{
		{"work that does not end", "work 20000", 200 * time.Millisecond, cuda.CodeNotReady},
		{"checkpoint", "fail checkpoint 2", time.Minute, 2},
		{"lock", "fail lock 999", time.Minute, 999},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := target(t, cudasim.Options{Processes: 2})
			c := client(t)
			before := [2]string{ask(t, a, 0), ask(t, a, 1)}
			if got, err := a.Say(1, tc.say, timeout); err != nil || got != "ok" {
				t.Fatalf("%q: %q, %v", tc.say, got, err)
			}
			if _, err := c.Suspend(ctx(t), a.PID, tc.timeout); cuda.CodeOf(err) != tc.code {
				t.Fatalf("Suspend: %v, want code %d", err, tc.code)
			}
			pids, err := cuda.Tree(a.PID)
			if err != nil {
				t.Fatal(err)
			}
			for _, pid := range pids {
				wantState(t, c, pid, cuda.Running)
			}
			if after := [2]string{ask(t, a, 0), ask(t, a, 1)}; after != before {
				t.Errorf("the processes answer %v, and %v before", after, before)
			}
		})
	}
}

// A process that somebody else had suspended stays so.
func TestSuspendedBefore(t *testing.T) {
	a := target(t, cudasim.Options{})
	c := client(t)
	if err := c.Do(ctx(t), cuda.Lock, a.PID, time.Minute, nil); err != nil {
		t.Fatal(err)
	}
	s, err := c.Suspend(ctx(t), a.PID, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, c, a.PID, cuda.Checkpointed)
	if err := s.Undo(); err != nil {
		t.Fatal(err)
	}
	wantState(t, c, a.PID, cuda.Locked)
	if err := c.Do(ctx(t), cuda.Unlock, a.PID, 0, nil); err != nil {
		t.Fatal(err)
	}
}

// Signals for the group of the client's process do not end gpucr-cuda, which alone can let the processes go.
func TestSignals(t *testing.T) {
	a := target(t, cudasim.Options{})
	c := client(t)
	if _, err := c.Suspend(ctx(t), a.PID, time.Minute); err != nil {
		t.Fatal(err)
	}
	pids, err := cuda.Tree(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	sent := 0
	for _, pid := range pids {
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && exe == holder {
			for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
				if err := syscall.Kill(pid, sig); err != nil {
					t.Fatal(err)
				}
			}
			sent++
		}
	}
	if sent != 1 {
		t.Fatalf("%d programs hold the driver, want one", sent)
	}
	wantState(t, c, a.PID, cuda.Checkpointed)
	if _, err := c.Resume(ctx(t), a.PID, nil); err != nil {
		t.Fatal(err)
	}
}

func TestOtherGPUs(t *testing.T) {
	a := target(t, cudasim.Options{GPUs: 2})
	c := client(t)
	before := ask(t, a, 0)
	info, err := c.Info(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	one, two := info.Devices[0].UUID, info.Devices[1].UUID
	if _, err := c.Suspend(ctx(t), a.PID, time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Resume(ctx(t), a.PID, []cuda.Pair{{From: one, To: two}, {From: two, To: one}}); err != nil {
		t.Fatal(err)
	}
	if after := ask(t, a, 0); after != before {
		t.Errorf("on exchanged GPUs the process answers %s, and %s before", after, before)
	}
	// The first GPU's memory has the counter, and is the larger one.
	var first, second syscall.Stat_t
	for dev, st := range map[int]*syscall.Stat_t{0: &first, 1: &second} {
		if err := syscall.Stat(filepath.Join(sim.Dir, fmt.Sprintf("vram.%d.%d", a.PID, dev)), st); err != nil {
			t.Fatal(err)
		}
	}
	if first.Size >= second.Size {
		t.Errorf("the GPUs were not exchanged: %d and %d bytes", first.Size, second.Size)
	}
	if _, err := c.Suspend(ctx(t), a.PID, time.Minute); err != nil {
		t.Fatal(err)
	}
	missing := two
	missing[0] ^= 1
	if _, err := c.Resume(ctx(t), a.PID,
		[]cuda.Pair{{From: two, To: missing}}); cuda.CodeOf(err) != cuda.CodeInvalidDevice {
		t.Errorf("restore on a GPU that is not there: %v", err)
	}
}

func TestStandIns(t *testing.T) {
	gpu := func(n byte, name string) cuda.Device { return cuda.Device{UUID: cuda.UUID{n}, Name: name} }
	a, b, c, d := gpu(1, "big"), gpu(2, "big"), gpu(3, "big"), gpu(4, "small")
	pair := func(from, to cuda.Device) cuda.Pair { return cuda.Pair{From: from.UUID, To: to.UUID} }
	for _, tc := range []struct {
		name             string
		had, used, shown []cuda.Device
		want             []cuda.Pair
	}{
		{"all there", []cuda.Device{a, b}, []cuda.Device{a, b}, []cuda.Device{b, a}, nil},
		{"an unused one is not shown", []cuda.Device{a, b}, []cuda.Device{a}, []cuda.Device{a}, nil},
		{"hidden", []cuda.Device{a, b}, []cuda.Device{a}, []cuda.Device{b}, []cuda.Pair{pair(a, b), pair(b, a)}},
		{"another machine", []cuda.Device{a}, []cuda.Device{a}, []cuda.Device{c, b}, []cuda.Pair{pair(a, c)}},
		{"another machine with two", []cuda.Device{a, b}, []cuda.Device{b}, []cuda.Device{c, d},
			[]cuda.Pair{pair(a, d), pair(b, c)}},
		{"one stays", []cuda.Device{a, b}, []cuda.Device{a, b}, []cuda.Device{c, b},
			[]cuda.Pair{pair(a, c), pair(b, b)}},
		{"another kind", []cuda.Device{a}, []cuda.Device{a}, []cuda.Device{d}, nil},
		{"too few", []cuda.Device{a, b}, []cuda.Device{a, b}, []cuda.Device{b}, nil},
		{"none", []cuda.Device{a}, []cuda.Device{a}, nil, nil},
	} {
		var used []cuda.UUID
		for _, d := range tc.used {
			used = append(used, d.UUID)
		}
		if got := cuda.StandIns(tc.had, used, tc.shown); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestParsePairs(t *testing.T) {
	const a, b = "GPU-63756461-7369-6d00-0000-000000000000", "63756461-7369-6d00-0000-0000000000ff"
	pairs, err := cuda.ParsePairs(a + "=" + b + "," + b + "=" + a)
	if err != nil || len(pairs) != 2 || pairs[0].To.String() != "GPU-"+b || pairs[1].To.String() != a {
		t.Errorf("%v, %v", pairs, err)
	}
	if pairs, err := cuda.ParsePairs(""); err != nil || pairs != nil {
		t.Errorf("an empty map: %v, %v", pairs, err)
	}
	for _, bad := range []string{"x", a, a + "=", a + "=" + b + ",", a + "=" + b + "," + a + "=" + a,
		a + "=" + b + "," + b + "=" + b, "GPU-=" + b, a + "=" + strings.Repeat("z", 36)} {
		if pairs, err := cuda.ParsePairs(bad); err == nil {
			t.Errorf("%q is read as %v", bad, pairs)
		}
	}
}

func TestParseAction(t *testing.T) {
	var all bytes.Buffer
	for _, s := range []string{"lock", "checkpoint", "restore", "unlock"} {
		a, err := cuda.ParseAction(s)
		fmt.Fprint(&all, a, err, " ")
	}
	if got := all.String(); got != "lock<nil> checkpoint<nil> restore<nil> unlock<nil> " {
		t.Error(got)
	}
	if _, err := cuda.ParseAction("state"); err == nil {
		t.Error("state is taken for an action")
	}
}
