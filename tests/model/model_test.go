package model

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var (
	runFor  = flag.Duration("model.time", 10*time.Second, "how long programs are made and run")
	seed    = flag.Uint64("model.seed", 1, "seed of the first program")
	workers = flag.Int("model.workers", 2, "programs at once")
	replay  = flag.String("model.program", "", "run the program in this file, as a failure has printed it")
	times   = flag.Int("model.times", 1, "how often -model.program is run")
	only    = flag.String(
		"model.mode", "crashes", "crashes, faults, liars: programs of it alone; all: they take turns",
	)
	without  = flag.String("model.without", "", "steps that are left out, with commas")
	shrinkBy = flag.Duration("model.shrink", time.Minute, "how long a failing program is made shorter")
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Badger leaves these behind when it refuses to open a damaged index.
		goleak.IgnoreAnyFunction("github.com/dgraph-io/ristretto/v2/z.(*AllocatorPool).freeupAllocators"),
		goleak.IgnoreAnyFunction("github.com/dgraph-io/badger/v4.(*DB).monitorCache"))
}

// endless is how long a program may take. Most take less than a second.
const endless = 5 * time.Minute

// execute runs a program in folders below dir.
func execute(p *program, dir string, n *counts) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	n.programs.Add(1)
	late := time.AfterFunc(endless, func() {
		debug.SetTraceback("all") // who waits for whom
		panic(fmt.Sprintf("a program does not end within %v:\n%s", endless, p))
	})
	defer late.Stop()
	w, err := newWorld(p, dir, n)
	if err != nil {
		return err
	}
	defer func() {
		if w.s != nil {
			w.close()
		}
	}()
	if err := w.open(false); err != nil {
		return err
	}
	for i := range p.Ops {
		err := w.perform(&p.Ops[i])
		if errors.Is(err, errUnusable) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", i+2, err)
		}
	}
	last := op{ID: -1, Do: "reopen", NoFaults: true}
	if err := w.perform(&last); err != nil && !errors.Is(err, errUnusable) {
		return err
	}
	if w.s == nil {
		return nil
	}
	return w.compare()
}

func scratch(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := os.Stat("/dev/shm"); err == nil {
		if d, err := os.MkdirTemp("/dev/shm", "model-"); err == nil {
			t.Cleanup(func() { os.RemoveAll(d) })
			dir = d
		}
	}
	return dir
}

func TestModel(t *testing.T) {
	dir := scratch(t)
	var n counts
	if *replay != "" {
		f, err := os.Open(*replay)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		p, err := parseProgram(f)
		if err != nil {
			t.Fatal(err)
		}
		for range *times {
			if err := execute(p, filepath.Join(dir, "p"), &n); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	begin := time.Now()
	var next atomic.Uint64
	next.Store(*seed)
	var failed atomic.Bool
	var wg sync.WaitGroup
	for i := range *workers {
		wg.Go(func() {
			for first := i == 0; (first || time.Since(begin) < *runFor) && !failed.Load(); first = false {
				s := next.Add(1) - 1
				m := []mode{crashes, faults, crashes, faults, faults, crashes, liars}[s%7]
				if *only != "all" {
					m = mode(*only)
				}
				p := generate(s, m, strings.Split(*without, ","))
				// What a panic elsewhere leaves here tells which programs were at work.
				os.WriteFile(filepath.Join(dir, fmt.Sprintf("program-%d", i)), []byte(p.String()), 0o600)
				err := execute(p, filepath.Join(dir, fmt.Sprint("w", i)), &n)
				if err == nil || failed.Swap(true) {
					continue
				}
				took := time.Since(begin).Round(time.Second)
				t.Errorf("seed %d (%s) fails after %v, %d crash points, %d faults: %v",
					s, m, took, n.crashes.Load(), n.faults.Load(), err)
				short, why := shrink(p, err, time.Now().Add(*shrinkBy), func(p *program) error {
					return execute(p, filepath.Join(dir, fmt.Sprint("w", i)), &n)
				})
				t.Errorf("a short program that fails, to be run with -model.program FILE:\n%s%v", short, why)
			}
		})
	}
	tell := func() {
		t.Logf("seeds %d to %d (%s): %d programs of %d steps; %d crash points, %d faults, %d opens in %v",
			*seed, next.Load()-1, *only, n.programs.Load(), n.steps.Load(), n.crashes.Load(), n.faults.Load(),
			n.opens.Load(), time.Since(begin).Round(time.Second))
	}
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	each := time.NewTicker(time.Minute)
	defer each.Stop()
	for {
		select {
		case <-each.C:
			tell()
		case <-ended:
			tell()
			return
		}
	}
}
