// Command gpu shows, on a machine with an NVIDIA GPU, what gpucr-fs does for a process that uses one, and prints the
// tables of BENCHMARKS.md about it. scripts/gpu-pack.sh packs it with all it needs; the machine has to have the driver,
// PyTorch and root, and no network.
//
// It goes step by step: each has a limit, a step that fails is reported word for word and the next one begins, and
// results are printed as they come. The application is src/app.py; another can stand in for it, such as cuda/cudasim's
// on a machine without a GPU.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

type options struct {
	pack, work, out    string
	criu, libcuda      string
	app, python, model string
	device             string
	cycles, runs       int
	apart              time.Duration
	budget             time.Duration
	keep, matrix       bool
	only               string

	kills  int
	seed   uint64
	within time.Duration
	copies int
	models string
	dumps  int
}

func main() {
	var o options
	flag.StringVar(&o.pack, "pack", ".", "`DIR` of the pack")
	flag.StringVar(&o.work, "work", "",
		"`DIR` for stores and images, on a disk with 40 GB free (default: a new one in $TMPDIR)")
	flag.StringVar(&o.out, "out", os.Getenv("OUT"), "`DIR` for results and logs (default $OUT, else WORK/out)")
	flag.StringVar(&o.criu, "criu", "", "`FILE` of criu (default: the pack's)")
	flag.StringVar(&o.libcuda, "libcuda", "", "`FILE` of libcuda.so.1 (default: where the loader finds it)")
	flag.StringVar(&o.app, "app", "torch", "the application: torch, or the `FILE` of cudasim's")
	flag.StringVar(&o.python, "python", "python3", "the python that has PyTorch")
	flag.StringVar(&o.model, "model", "", "options of the model, such as '--layers 2 --width 128 --heads 4'")
	flag.StringVar(&o.device, "device", "cuda", "PyTorch's device: cuda, or cpu to try the pack without a GPU")
	flag.IntVar(&o.cycles, "cycles", 20, "dumps and restores in a row")
	flag.IntVar(&o.runs, "runs", 3, "measured restores of each kind")
	flag.DurationVar(&o.apart, "apart", 2*time.Minute, "time between two dumps of one process, for what they share")
	flag.DurationVar(&o.budget, "budget", 510*time.Second, "no step begins later, and a running one is ended")
	flag.BoolVar(&o.keep, "keep", false, "leave stores and images")
	flag.BoolVar(
		&o.matrix, "matrix", false, "take the programs of src/matrix.py through dump and restore, and nothing else",
	)
	flag.StringVar(&o.only, "only", "", "the `PROGRAMS` of the matrix, with commas between (default: all)")
	flag.IntVar(&o.kills, "kills", 0, "kill an actor of each of `N` dumps, and nothing else")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of the moments of -kills")
	flag.DurationVar(&o.within, "within", 30*time.Second, "how long a program may take to answer again after a kill")
	flag.IntVar(
		&o.copies, "copies", 0,
		"restore `N` copies at once, beside the driver alone, and a process on another GPU, and nothing else",
	)
	flag.StringVar(
		&o.models, "models", "",
		"measure dumps and restores of models of the `SIZES` of their images, such as 14g,26g, and nothing else",
	)
	flag.IntVar(&o.dumps, "dumps", 3, "measured dumps of each of -models")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed, err := show(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpu:", err)
		os.Exit(2)
	}
	if failed > 0 {
		os.Exit(1)
	}
}

func show(ctx context.Context, o options) (failed int, err error) {
	began := time.Now()
	ctx, cancel := context.WithDeadline(ctx, began.Add(o.budget))
	defer cancel()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	// What this program was given beside its standard streams is not for the applications: they would be dumped with
	// it.
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return 0, err
	}
	if o.pack, err = filepath.Abs(o.pack); err != nil {
		return 0, err
	}
	if o.work != "" {
		if o.work, err = filepath.Abs(o.work); err != nil {
			return 0, err
		}
	}
	if o.work == "" {
		if o.work, err = os.MkdirTemp("", "gpucr-gpu"); err != nil {
			return 0, err
		}
	}
	if o.out == "" {
		o.out = filepath.Join(o.work, "out")
	}
	for _, d := range []string{o.work, o.out, filepath.Join(o.work, "logs")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return 0, err
		}
	}
	text, err := os.Create(filepath.Join(o.out, "output.txt"))
	if err != nil {
		return 0, err
	}
	defer text.Close()
	b := &bench{o: o, began: began, out: io.MultiWriter(os.Stdout, text), res: newResults()}
	b.log = slog.New(slog.NewTextHandler(b.out, nil))
	b.gpucrfs, b.holder = filepath.Join(o.pack, "bin/gpucr-fs"), filepath.Join(o.pack, "bin/gpucr-cuda")
	b.store, b.images = filepath.Join(o.work, "store"), filepath.Join(o.work, "tmpfs", "images")
	if o.criu == "" {
		b.o.criu = filepath.Join(o.pack, "criu/run")
	}
	os.Setenv("CRIU", b.o.criu)
	os.Setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8") // what PyTorch wants for equal answers to equal questions
	if o.libcuda != "" {
		os.Setenv("GPUCR_FS_LIBCUDA", o.libcuda)
	}
	defer func() {
		b.cleanUp()
		err = errors.Join(err, b.write())
	}()
	steps, whole := b.steps, false
	switch {
	case o.matrix:
		steps = b.matrixSteps
	case o.kills > 0:
		steps = b.killSteps
	case o.copies > 0:
		steps = b.copySteps
	case o.models != "":
		steps = b.modelSteps
	default:
		whole = true
	}
	for _, s := range steps() {
		if !b.step(ctx, s) {
			failed++
		}
	}
	if whole {
		b.res.aims()
	}
	b.res.print(b.out)
	fmt.Fprintf(b.out, "\n%d of the steps failed; %.0f s in all\n", failed, time.Since(began).Seconds())
	return failed, nil
}

// step is one part of the show.
type step struct {
	name  string
	limit time.Duration
	do    func(context.Context) error
}

// step runs one and tells how it went.
func (b *bench) step(ctx context.Context, s step) bool {
	if ctx.Err() != nil {
		fmt.Fprintf(b.out, "\n== %s: not begun, the time is over\n", s.name)
		b.res.Failures = append(b.res.Failures, s.name+": not begun, the time is over")
		return false
	}
	fmt.Fprintf(b.out, "\n== %s (at %.0f s)\n", s.name, time.Since(b.began).Seconds())
	start := time.Now()
	sctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	err := s.do(sctx)
	if err != nil {
		fmt.Fprintf(b.out, "FAILED %s after %.1f s: %v\n", s.name, time.Since(start).Seconds(), err)
		b.res.Failures = append(b.res.Failures, fmt.Sprintf("%s: %v", s.name, err))
	} else {
		fmt.Fprintf(b.out, "-- %s: done in %.1f s\n", s.name, time.Since(start).Seconds())
	}
	if err := b.write(); err != nil {
		fmt.Fprintln(b.out, "write the results:", err)
	}
	return err == nil
}

// write saves the results so far and the logs, for the one who cannot look at this machine.
func (b *bench) write() error {
	text, err := json.MarshalIndent(b.res, "", "  ")
	if err != nil {
		return err
	}
	var logs strings.Builder
	names, _ := filepath.Glob(filepath.Join(b.o.work, "logs", "*"))
	for _, n := range names {
		t, err := os.ReadFile(n)
		if err != nil {
			return err
		}
		if len(t) > 64<<10 {
			t = t[len(t)-64<<10:]
		}
		fmt.Fprintf(&logs, "==== %s\n%s\n", filepath.Base(n), t)
	}
	return errors.Join(os.WriteFile(filepath.Join(b.o.out, "results.json"), text, 0o644),
		os.WriteFile(filepath.Join(b.o.out, "logs.txt"), []byte(logs.String()), 0o644))
}
