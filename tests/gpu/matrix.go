package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// program is a line of the matrix: a class of src/matrix.py, and how it is dumped and restored.
type program struct {
	class, name string
	http        bool     // asked over one HTTP connection, which stays open
	workers     bool     // started by torchrun, a worker for each GPU, up to two
	gpus        int      // that it needs; 0: one
	env         []string // beside the environment of this program
	dump        []string // options of dump
	criu        []string // options of criu, for dump and restore
	refused     string   // what a refusal has to say; "": it has to work
}

// held are criu's options for a connection whose other end stays where it is. The machine need not have a firewall to
// hold back what arrives meanwhile: nothing does.
var held = []string{"--tcp-established", "--network-lock", "skip"}

// torchrun are criu's options for torchrun's processes: their store's connections, and NCCL's unlinked shared memory.
var torchrun = append([]string{"--ghost-limit", "1G"}, held...)

// nccl is the recipe of the manual for what NCCL sends between processes.
var nccl = []string{"NCCL_P2P_DISABLE=1", "NCCL_CUMEM_ENABLE=0"}

var programs = []program{
	{class: "torch", name: "PyTorch"},
	{class: "generate", name: "transformers, generate"},
	{class: "cache", name: "transformers, keys and values kept"},
	{class: "compile", name: "torch.compile"},
	{class: "compileoverhead", name: "torch.compile, reduce-overhead"},
	{class: "compileautotune", name: "torch.compile, max-autotune"},
	{class: "triton", name: "Triton"},
	{class: "graph", name: "CUDA graph"},
	{class: "streams", name: "streams and events"},
	{class: "pinned", name: "pinned memory"},
	{class: "registered", name: "registered memory"},
	{class: "loader", name: "DataLoader, fork"},
	{class: "loaderspawn", name: "DataLoader, spawn", criu: []string{"--link-remap"}},
	{class: "loaderforkserver", name: "DataLoader, forkserver", criu: []string{"--link-remap"}},
	{class: "shared", name: "torch.multiprocessing, host tensor", criu: []string{"--link-remap"}},
	{
		class:   "sharedcuda",
		name:    "torch.multiprocessing, device tensor",
		criu:    []string{"--link-remap"},
		refused: "CUDA IPC",
	},
	{class: "jax", name: "JAX", env: []string{"CUDA_VISIBLE_DEVICES=0"}},
	{class: "jax", name: "JAX, two GPUs", gpus: 2, refused: "XLA"},
	{class: "cupy", name: "CuPy"},
	{class: "managed", name: "managed memory", refused: "managed memory"},
	{class: "numba", name: "Numba"},
	{class: "released", name: "GPU let go"},
	{class: "busy", name: "kernels in flight"},
	{class: "polling", name: "a thread that asks the driver all the time"},
	{class: "forked", name: "forked children"},
	{class: "child", name: "two programs, two contexts"},
	{class: "aiohttp", name: "HTTP service, asyncio", http: true, criu: held},
	{class: "uvloop", name: "HTTP service, uvloop", http: true, criu: held, dump: []string{"--park-rings"}},
	{class: "grpc", name: "gRPC service", criu: held},
	{class: "worker", name: "torchrun, NCCL on the recipe", workers: true, env: nccl, criu: torchrun,
		dump: []string{"--park-rings"}},
	{class: "worker", name: "torchrun, NCCL as it comes", workers: true, gpus: 2, criu: torchrun, refused: "NCCL",
		dump: []string{"--park-rings"}},
	{
		class:   "worker",
		name:    "torchrun, NCCL_P2P_DISABLE=1 alone",
		workers: true,
		gpus:    2,
		criu:    torchrun,
		refused: "NCCL",
		dump:    []string{"--park-rings"},
		env:     []string{"NCCL_P2P_DISABLE=1"},
	},
	{class: "peers", name: "two GPUs", gpus: 2},
	{class: "peerscopy", name: "two GPUs, a copy between them", gpus: 2},
}

// outcome is what became of a program. Result is "works", "refused", "not run", or what went wrong, in capitals.
type outcome struct {
	Name    string   `json:"name"`
	Result  string   `json:"result"`
	Why     string   `json:"why"`
	Check   []string `json:"check"` // the findings of check --pid
	Dump    float64  `json:"dump"`  // seconds
	Restore float64  `json:"restore"`
	Size    int64    `json:"size"` // of the images, bytes
	Good    bool     `json:"good"` // as it has to be
}

// lanes is how many programs are dumped and restored beside one another.
const lanes = 4

// matrix takes every program through a dump that leaves it running, a dump and a restore.
func (b *bench) matrix(ctx context.Context, only string) error {
	gpus := b.gpuCount(ctx)
	todo := make(chan program)
	var ports sync.Mutex // of torchrun: between dump and restore another one could take them
	var mu sync.Mutex
	var bad []string
	var wg sync.WaitGroup
	for range lanes {
		wg.Go(func() {
			for p := range todo {
				if p.workers {
					ports.Lock()
				}
				r := b.tryProgram(ctx, p, gpus)
				if p.workers {
					ports.Unlock()
				}
				mu.Lock()
				b.res.Programs = append(b.res.Programs, r)
				fmt.Fprintf(
					b.out, "%s: %s %s (dump %.1f s, restore %.1f s)\n", r.Name, r.Result, r.Why, r.Dump, r.Restore,
				)
				if !r.Good {
					bad = append(bad, r.Name)
				}
				mu.Unlock()
			}
		})
	}
	for _, p := range programs {
		if only == "" || slices.Contains(strings.Split(only, ","), p.class) {
			todo <- p
		}
	}
	close(todo)
	wg.Wait()
	order := func(r outcome) int {
		return slices.IndexFunc(programs, func(p program) bool { return p.name == r.Name })
	}
	slices.SortFunc(b.res.Programs, func(x, y outcome) int { return order(x) - order(y) })
	if len(bad) > 0 {
		return fmt.Errorf("not as it has to be: %s", strings.Join(bad, "; "))
	}
	return nil
}

func (b *bench) gpuCount(ctx context.Context) int {
	out, err := exec.CommandContext(ctx, "nvidia-smi", "-L").Output()
	if err != nil {
		return 0
	}
	return strings.Count(string(out), "GPU ")
}

// tryProgram gives what becomes of one program.
func (b *bench) tryProgram(ctx context.Context, p program, gpus int) (r outcome) {
	r.Name = p.name
	if max(p.gpus, 1) > gpus && b.gpu() {
		r.Result, r.Why, r.Good = "not run", fmt.Sprintf("needs %d GPUs", max(p.gpus, 1)), true
		return r
	}
	begin, cancel := context.WithTimeout(ctx, 2*time.Minute)
	a, err := b.startProgram(begin, p, min(gpus, 2))
	cancel()
	defer func() {
		if a != nil {
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
			defer cancel()
			if err := a.killTree(end); err != nil {
				r.Why, r.Good = r.Why+"; "+err.Error(), false
			}
		}
	}()
	if err != nil {
		r.Result, r.Why = "not run", err.Error()
		return r
	}
	name := strings.Map(func(c rune) rune {
		if c == ' ' || c == ',' {
			return '-'
		}
		return c
	}, p.name)
	r.Check = b.findings(ctx, a, p)
	r.Result, r.Why = b.live(ctx, p, a, name, &r)
	r.Good = r.Result == "works" && p.refused == "" ||
		r.Result == "refused" && p.refused != "" && strings.Contains(r.Why, p.refused)
	return r
}

// live takes a program through its dumps and its restore.
func (b *bench) live(ctx context.Context, p program, a *app, name string, r *outcome) (result, why string) {
	dump := func(name string, leave bool) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		args := append(b.dumpArgs(a, name, leave), p.dump...)
		_, err := b.fs(ctx, append(append(args, "--"), p.criu...)...)
		return err
	}
	answers := func() error {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		return a.verify(ctx)
	}
	// refused tells a program that goes on from one that does not.
	refused := func(which string, err error) (string, string) {
		if then := answers(); then != nil {
			return "LOST", fmt.Sprintf("by %s: %v; then: %v", which, err, then)
		}
		return "refused", reason(err)
	}
	if slices.Contains(p.criu, "--link-remap") {
		b.remaps.Lock()
		defer b.remaps.Unlock()
	}
	if err := dump(name+"-1", true); err != nil {
		return refused("dump --leave-running", err)
	}
	if err := answers(); err != nil {
		return "LOST", fmt.Sprintf("after dump --leave-running: %v", err)
	}
	a.known = descendants(a.pid) // those that it leaves behind are ours to wait for
	start := time.Now()
	if err := dump(name+"-2", false); err != nil {
		return refused("the second dump", err)
	}
	r.Dump = since(start)
	var info struct{ Checkpoint struct{ Logical int64 } }
	if err := b.fsJSON(ctx, &info, "info", b.store, name+"-2"); err != nil {
		return "FAILED", err.Error()
	}
	r.Size = info.Checkpoint.Logical
	if err := a.killTree(ctx); err != nil {
		return "FAILED", fmt.Sprintf("after the dump: %v", err)
	}
	start = time.Now()
	rctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	go a.reap(rctx) // a restore that begins anew ends what it had made
	args := []string{"restore", b.store, name + "-2", "--wait", "--criu", b.o.criu, "--"}
	if _, err := b.fs(rctx, append(args, p.criu...)...); err != nil {
		return "FAILED", fmt.Sprintf("restore: %v", err)
	}
	r.Restore = since(start)
	if err := answers(); err != nil {
		return "HANGS", fmt.Sprintf("after the restore: %v", err)
	}
	return "works", ""
}

// reason is the part of an error that tells a person why: its first lines, on one.
func reason(err error) string {
	lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
	return strings.Join(lines[:min(len(lines), 6)], " | ")
}

// findings are what check --pid says before anything is touched.
func (b *bench) findings(ctx context.Context, a *app, p program) (said []string) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	args := []string{"check", "--pid", strconv.Itoa(a.pid), "--json"}
	if slices.Contains(p.dump, "--park-rings") {
		args = append(args, "--park-rings")
	}
	out, err := b.fs(ctx, append(append(args, "--"), p.criu...)...)
	var report struct {
		Findings []struct{ What, Effect, Do string }
	}
	if jerr := json.Unmarshal([]byte(out), &report); jerr != nil {
		return []string{fmt.Sprintf("no report: %v: %v", jerr, err)}
	}
	for _, f := range report.Findings {
		said = append(said, f.Effect+": "+f.What+"; "+f.Do)
	}
	return said
}

// startProgram starts a program of the matrix and learns its answers.
func (b *bench) startProgram(ctx context.Context, p program, gpus int) (*app, error) {
	a := &app{
		name:      p.name,
		socket:    filepath.Join(b.o.work, fmt.Sprintf("m%d.sock", b.number())),
		processes: 1,
		starting:  true,
	}
	if p.http {
		a.service = newService(a.socket)
	}
	args := []string{filepath.Join(b.o.pack, "matrix.py"), p.class, "--socket", a.socket}
	if p.workers {
		args = append(
			[]string{"-m", "torch.distributed.run", "--standalone", "--nproc-per-node", strconv.Itoa(gpus)},
			args...)
	}
	cmd := exec.Command(b.o.python, args...)
	cmd.Env = append(os.Environ(), p.env...)
	return a, b.launch(ctx, a, cmd)
}

// killTree ends a program with all its descendants, whatever session they are in, and waits until their pids are free.
func (a *app) killTree(ctx context.Context) error {
	tree := descendants(a.pid)
	tree = append(tree, a.known...)
	for _, pid := range tree {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	a.known = tree
	for {
		left := 0
		for _, pid := range tree {
			syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
			if !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
				left = pid
			}
		}
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", left))
			return fmt.Errorf("process %d of %s does not go away: %s", left, a.name, stat)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// reap takes what ends of a program from the kernel until ctx ends: this program is the reaper of all that it starts.
func (a *app) reap(ctx context.Context) {
	for ctx.Err() == nil {
		for _, pid := range a.known {
			syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// descendants gives a process and all below it.
func descendants(pid int) []int {
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[i]))
		for _, l := range lists {
			text, _ := os.ReadFile(l)
			for _, f := range strings.Fields(string(text)) {
				if n, err := strconv.Atoi(f); err == nil {
					all = append(all, n)
				}
			}
		}
	}
	return all
}
