package main

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/gpucr/gpucr-fs/restore"
	"github.com/gpucr/gpucr-fs/tests/measure"
	"github.com/gpucr/gpucr-fs/tests/workload"
)

//go:embed src/objects.py
var objects []byte

// What is stored, and how a store is read, before and after gpucr-fs optimize.
const (
	imported  = "as imported"
	optimized = "optimized"
)

// corpus is what is stored, and how many of restic's bytes an optimized store may take for it.
type corpus struct {
	name  string
	bound float64
	start func(*bench) (*workload.Process, error) // nil: the four dumps
}

var corpora = []corpus{
	{"four dumps", 0.9, nil},
	{"heap of the workload", 1, (*bench).startHeap},
	{"heap of python3", 1, (*bench).startObjects},
}

// measureOptimize compares stores as they were imported with stores that gpucr-fs optimize --gc has gone over:
// their size beside restic's, the rate of a cold read, and how soon a process resumes.
func (b *bench) measureOptimize() error {
	for _, c := range corpora {
		take := func() error { return b.optimizeHeap(c) }
		if c.start == nil {
			take = func() error { return b.optimizeDumps(c.name) }
		}
		if err := take(); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return b.optimizeResume()
}

// optimizeDumps lets restic and two stores take the four dumps, optimizes one of the stores, and reads both in turns.
func (b *bench) optimizeDumps(name string) error {
	before, after := filepath.Join(b.dir, "dumps-before"), filepath.Join(b.dir, "dumps-after")
	if err := b.compareStored(name, b.dumps, before, after); err != nil {
		return err
	}
	readers := []reader{b.mountReader(imported, before), b.mountReader(optimized, after)}
	for round := range b.rounds {
		for i := range readers {
			if err := b.readOnce(readers[(i+round)%len(readers)]); err != nil {
				return err
			}
		}
	}
	return errors.Join(os.RemoveAll(before), os.RemoveAll(after))
}

// compareStored lets restic and two stores take dumps, and optimizes the second store. Its samples are bytes on disk.
func (b *bench) compareStored(what string, dumps []string, before, after string) error {
	note := func(who string, stored int64) {
		b.results.add(what+", "+who, float64(stored))
		say("%-22s %-12s %6d MB", what, who, stored/1e6)
	}
	tools := b.tools()
	restic := tools[slices.IndexFunc(tools, func(t tool) bool { return t.name == nameRestic })]
	stored, _, err := b.take(restic, dumps)
	if err != nil {
		return err
	}
	note(nameRestic, stored)
	if err := b.fillStores(dumps, before, after); err != nil {
		return err
	}
	for _, s := range []struct{ name, store string }{{imported, before}, {optimized, after}} {
		if stored, err = measure.DiskBytes(s.store); err != nil {
			return err
		}
		note(s.name, stored)
	}
	return nil
}

// fillStores lets two stores take dumps, and optimizes the second one.
func (b *bench) fillStores(dumps []string, before, after string) error {
	for _, store := range []string{before, after} {
		if _, err := b.gpucr.Run(b.ctx, "init", store); err != nil {
			return err
		}
		for i, d := range dumps {
			if _, err := b.gpucr.Run(b.ctx, "import", store, fmt.Sprintf("dump%d", i), d); err != nil {
				return err
			}
		}
	}
	begun := time.Now()
	if _, err := b.gpucr.Run(b.ctx, "optimize", "--gc", "-y", after); err != nil {
		return err
	}
	say("optimize --gc took %.1f s", time.Since(begun).Seconds())
	_, err := b.gpucr.Run(b.ctx, "verify", after)
	measure.Sync()
	return err
}

// optimizeHeap compares what is stored of a process whose larger part is a heap of small objects.
func (b *bench) optimizeHeap(c corpus) error {
	p, err := c.start(b)
	if err != nil {
		return err
	}
	images, err := b.dumped("heap", p)
	if err != nil {
		return err
	}
	before, after := filepath.Join(b.dir, "heap-before"), filepath.Join(b.dir, "heap-after")
	return errors.Join(b.compareStored(c.name, []string{images}, before, after), os.RemoveAll(before),
		os.RemoveAll(after), os.RemoveAll(images))
}

// startHeap starts a workload of which seven tenths are heap.
func (b *bench) startHeap() (*workload.Process, error) {
	return b.start("heap", b.memMB/2, 5, "--heap", "70", "--weights", "15", "--bf16", "10", "--zero", "5")
}

// startObjects starts a python3 that keeps more than 1 KB of small objects for each of its sessions.
func (b *bench) startObjects() (*workload.Process, error) {
	dir := filepath.Join(b.dir, "process-objects")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	bin := filepath.Join(dir, "objects.py")
	if err := os.WriteFile(bin, objects, 0o700); err != nil {
		return nil, err
	}
	return workload.Start(bin, dir, "--objects", strconv.Itoa(b.memMB*350))
}

// optimizeResume restores one process from a store as it was imported and from an optimized one, in turns, with cold
// caches, three times a round: a cold start of a daemon varies by twice its length. The first restore from each records
// its profile; it is checked, and does not count.
func (b *bench) optimizeResume() (err error) {
	p, err := b.start("resume", b.restoreMB, 6)
	if err != nil {
		return err
	}
	images, err := b.dumped("resume", p)
	if err != nil {
		return err
	}
	before, after := filepath.Join(b.dir, "resume-before"), filepath.Join(b.dir, "resume-after")
	defer func() { err = errors.Join(err, os.RemoveAll(before), os.RemoveAll(after), os.RemoveAll(images)) }()
	if err := b.fillStores([]string{images}, before, after); err != nil {
		return err
	}
	stores := []struct{ name, path string }{{imported, before}, {optimized, after}}
	for turn := range 3*b.rounds + 1 {
		for i := range stores {
			s := stores[(i+turn)%len(stores)]
			resumed, err := b.resume(p, s.path, turn == 0)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if turn > 0 {
				b.results.add("resume "+s.name, resumed)
				say("resume %-12s %.3f s", s.name, resumed)
			}
		}
	}
	return nil
}

// resume gives the seconds that a restore's timeline counts until the process runs, and ends the process.
func (b *bench) resume(p *workload.Process, store string, verify bool) (seconds float64, err error) {
	if err := measure.DropCaches(); err != nil {
		return 0, err
	}
	var result struct {
		Timeline restore.Timeline `json:"timeline"`
	}
	if err := b.gpucr.JSON(b.ctx, &result, "restore", "--wait", "--criu", b.criu, store, "dump0"); err != nil {
		return 0, err
	}
	if verify {
		err = p.Verified(2 * time.Minute)
	}
	at, terr := measure.Mark(&result.Timeline, restore.MarkResume)
	return at.Sub(result.Timeline.Started).Seconds(), errors.Join(err, terr, p.Kill())
}
