// Command bench compares gpucr-fs with cp, restic, borg and desync in one run, on real CRIU dumps, and prints a
// Markdown table with a verdict for each target.
//
// Two workload processes load the same model and keep heaps of their own. The first is dumped three times while it runs
// on, the second once. Then, -n times over, the parts take turns:
//
//	import   each tool takes all four dumps, in order, into an empty repository; the dumps are in the page cache
//	read     one pages image is read sequentially: cold (caches dropped, daemons fresh) and again from the page cache
//	restore  criu restores a 1 GB process from images in the page cache, plain ext4 against the mount
//	dump     criu dumps a running process, plain ext4 against the mount, until the checkpoint is sealed
//	optimize stores before and after gpucr-fs optimize: bytes beside restic's, cold reads, and how soon a process
//	         resumes with cold caches
//
// Every figure is a median. Memory is touched before anything is timed: a virtual machine gets much of it from its host
// on first touch, which would count against whoever comes first.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/measure"
	"github.com/gpucr/gpucr-fs/tests/workload"
)

const allParts = "import,read,restore,dump,optimize"

type options struct {
	memMB, restoreMB, rounds, warmMB int
	pause                            float64
	parts                            []string
	jsonOut                          bool
	dir, gpucr, criu, desync         string
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	quick := f.Bool("quick", false, "a small, single run: shows that all parts work, its figures mean little")
	parts := f.String("parts", allParts, "what to measure")
	f.IntVar(&o.memMB, "mem", 960, "memory of each dumped process, MB")
	f.IntVar(&o.restoreMB, "restore-mem", 1024, "memory of the restored process, MB")
	f.IntVar(&o.rounds, "n", 3, "rounds; the median counts")
	f.IntVar(&o.warmMB, "warm", -1, "MB of memory to touch first; -1: most of what is free")
	f.Float64Var(&o.pause, "pause", 3, "seconds between two dumps of a process")
	f.BoolVar(&o.jsonOut, "json", false, "print JSON instead of a table")
	f.StringVar(&o.dir, "dir", "", "folder for dumps and repositories (default: a temporary one)")
	f.StringVar(&o.gpucr, "gpucr", "bin/gpucr-fs", "the program to measure")
	f.StringVar(&o.criu, "criu", os.Getenv("CRIU"), "criu 4.2 or newer (default $CRIU, else build/criu/criu)")
	f.StringVar(&o.desync, "desync", os.Getenv("DESYNC"), "desync (default $DESYNC, else from PATH)")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if *quick {
		o.memMB, o.restoreMB, o.rounds, o.pause, o.warmMB = 64, 64, 1, 0.5, 0
	}
	o.parts = strings.Split(*parts, ",")
	for _, p := range o.parts {
		if !slices.Contains(strings.Split(allParts, ","), p) {
			return o, fmt.Errorf("unknown part %q", p)
		}
	}
	if o.desync == "" {
		o.desync, _ = exec.LookPath("desync")
	}
	return o, measure.Programs(&o.gpucr, &o.criu)
}

func main() { measure.Main("bench", run) }

// bench is one run.
type bench struct {
	options
	ctx     context.Context
	gpucr   cli.Program
	bin     string // the workload
	dumps   []string
	results *results
}

func run(ctx context.Context, args []string) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(o.dir, "gpucr-bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	o.dir = dir
	b := &bench{options: o, ctx: ctx, gpucr: cli.Program(o.gpucr), results: newResults()}
	b.results.Machine, err = measure.Describe()
	if err != nil {
		return err
	}
	if err := touch(o.warmMB); err != nil {
		return err
	}
	if b.bin, err = workload.Build(dir); err != nil {
		return err
	}
	compared := slices.Contains(o.parts, "import") || slices.Contains(o.parts, "read")
	if compared && b.desync == "" {
		say("desync is not here: give its path in $DESYNC to have it compared")
		b.results.Notes = append(b.results.Notes, "desync was not found; its lines are missing")
	}
	if compared || slices.Contains(o.parts, "optimize") {
		if err := b.makeDumps(); err != nil {
			return err
		}
	}
	for _, part := range []struct {
		name string
		run  func() error
	}{{"import", b.measureImport}, {"read", b.measureRead}, {"restore", b.measureRestore}, {"dump", b.measureDump},
		{"optimize", b.measureOptimize}} {
		if !slices.Contains(o.parts, part.name) {
			continue
		}
		if err := part.run(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	b.results.judge()
	if o.jsonOut {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(b.results)
	}
	b.results.print(os.Stdout)
	return nil
}

// say tells a person who waits what is going on.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// touch touches mb MB of memory; -1: all that is available but 3 GB, and no more than 14 GB, which the largest part of
// a run does not exceed.
func touch(mb int) error {
	n := int64(mb) << 20
	if mb < 0 {
		n = min(measure.Available()-3<<30, 14<<30)
	}
	took, err := measure.Freshen(n)
	if err == nil && took > 0 {
		say("touched %d MB of memory in %.1f s", n>>20, took.Seconds())
	}
	return err
}
