package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore"
	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/measure"
)

// timeout bounds the wait for the process to check its memory.
const timeout = 2 * time.Minute

// Names of checkpoints and of their largest file.
const (
	imported   = "imported"
	dumped     = "dumped"
	pagesImage = "pages-1.img"
)

// side is a kind of store.
type side string

const (
	plain     side = "plain"
	encrypted side = "encrypted"
)

// place is where a side's stores are in one round.
type place struct {
	side              side
	store, live, open string // imported to, dumped to, empty
	mnt               string
}

// criuDump dumps the process to the images without this program.
func (b *bench) criuDump() error {
	out, err := exec.CommandContext(b.ctx, b.criu, "dump", "-t", strconv.Itoa(b.process.PID), "-D", b.images,
		"--leave-running").CombinedOutput()
	if err != nil {
		return fmt.Errorf("criu dump: %w: %s", err, out)
	}
	return nil
}

// measure runs all rounds.
func (b *bench) measure() error {
	for round := range b.rounds {
		sides := []side{plain, encrypted}
		if round%2 == 1 {
			slices.Reverse(sides)
		}
		if err := b.round(round, sides); err != nil {
			return err
		}
	}
	return nil
}

// round measures everything once, each step for both sides before the next one.
func (b *bench) round(round int, sides []side) (err error) {
	var places []*place
	for _, s := range sides {
		dir := filepath.Join(b.dir, string(s))
		p := &place{side: s, store: filepath.Join(dir, "store"), live: filepath.Join(dir, "live"),
			open: filepath.Join(dir, "open"), mnt: filepath.Join(dir, "mnt")}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		if err := os.MkdirAll(p.mnt, 0o755); err != nil {
			return err
		}
		for _, store := range []string{p.store, p.live, p.open} {
			if err := b.init(p.side, store); err != nil {
				return err
			}
		}
		places = append(places, p)
	}
	for _, step := range []func(*place) error{b.open, b.importImages, b.verify, b.dump, b.coldRead} {
		for _, p := range places {
			if err := step(p); err != nil {
				return fmt.Errorf("%s: %w", p.side, err)
			}
		}
	}
	for _, way := range []restoring{{first: true}, {}, {cold: true}} {
		for _, p := range places {
			if err := b.restore(p, way, round == 0); err != nil {
				return fmt.Errorf("%s: restore: %w", p.side, err)
			}
		}
	}
	return nil
}

func (b *bench) init(s side, store string) error {
	args := []string{"init", store}
	if s == encrypted {
		args = append(args, "--encrypt", "--recipient", b.recipient)
	}
	_, err := b.gpucr.Run(b.ctx, args...)
	return err
}

// command measures a command of the program, and the daemon that it asks, if there is one.
func (b *bench) command(what string, p *place, d *cli.Daemon, args ...string) error {
	return b.timed(what, p, d, func() error {
		_, err := b.gpucr.Run(b.ctx, args...)
		return err
	})
}

// timed measures what do takes: time, and that of processors, of the programs that it runs and of a daemon, if there
// is one.
func (b *bench) timed(what string, p *place, d *cli.Daemon, do func() error) error {
	used, err := processorTime(d)
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := do(); err != nil {
		return err
	}
	took := time.Since(begun)
	now, err := processorTime(d)
	if err != nil {
		return err
	}
	b.note(what, p, took.Seconds())
	b.note(what+cpu, p, (now - used).Seconds())
	return nil
}

// processorTime gives what the programs that this one has run have used of processors, and a daemon, which may be nil.
func processorTime(d *cli.Daemon) (time.Duration, error) {
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &use); err != nil {
		return 0, err
	}
	used := time.Duration(use.Utime.Nano() + use.Stime.Nano())
	if d == nil {
		return used, nil
	}
	// The clock of a process's processor time, as clock_getcpuclockid(3) makes it: with those of all its threads.
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^d.PID()<<3|2), &t); err != nil {
		return 0, fmt.Errorf("the daemon's processor time: %w", err)
	}
	return used + time.Duration(t.Nano()), nil
}

func (b *bench) note(what string, p *place, v float64) {
	b.results.add(what, p.side, v)
	if what == rowStored {
		say("%-18s %-10s %8.1f MB", what, p.side, v/1e6)
		return
	}
	say("%-18s %-10s %8.3f s", what, p.side, v)
}

func (b *bench) open(p *place) error { return b.command(rowOpen, p, nil, "ls", p.open) }

// settle brings memory and disk into the same state before each thing that is timed.
func (b *bench) settle() error {
	measure.Sync()
	_, err := measure.Freshen(int64(b.memMB)<<20 + 256<<20)
	return err
}

func (b *bench) importImages(p *place) error {
	if err := errors.Join(measure.ReadTree(b.images), b.settle()); err != nil {
		return err
	}
	if err := b.command(rowImport, p, nil, "import", p.store, imported, b.images); err != nil {
		return err
	}
	n, err := measure.DiskBytes(p.store)
	b.note(rowStored, p, float64(n))
	return err
}

func (b *bench) verify(p *place) error {
	if err := b.settle(); err != nil {
		return err
	}
	return b.command(rowVerify, p, nil, "verify", p.store)
}

// dump dumps the process into a store that a daemon serves.
func (b *bench) dump(p *place) (err error) {
	d, err := b.gpucr.Serve(p.live, p.mnt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Stop()) }()
	if err := b.settle(); err != nil {
		return err
	}
	return b.command(rowDump, p, d, "dump", "--criu", b.criu, p.live, dumped, "-t", strconv.Itoa(b.process.PID),
		"--leave-running")
}

func (b *bench) coldRead(p *place) (err error) {
	if err := errors.Join(b.settle(), measure.DropCaches()); err != nil {
		return err
	}
	d, err := b.gpucr.Serve(p.store, p.mnt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Stop()) }()
	return b.timed(rowCold, p, d, func() error {
		_, err := measure.ReadFile(filepath.Join(p.mnt, ".checkpoints", imported, pagesImage))
		return err
	})
}

// restoring is how the process is restored.
type restoring struct {
	first bool // to record its profile; not measured
	cold  bool // the page cache is dropped before
}

// restore ends the process and restores it from its dump. It runs on.
func (b *bench) restore(p *place, way restoring, check bool) (err error) {
	if err := b.process.Kill(); err != nil {
		return err
	}
	d, err := b.gpucr.Serve(p.live, p.mnt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Stop()) }()
	if way.first {
		return b.record(p)
	}
	if err := b.settle(); err != nil {
		return err
	}
	if way.cold {
		err = measure.DropCaches()
	} else {
		err = measure.ReadTree(p.live)
	}
	if err != nil {
		return err
	}
	var result struct {
		Timeline restore.Timeline `json:"timeline"`
	}
	used, err := processorTime(d)
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := b.gpucr.JSON(b.ctx, &result, "restore", "--wait", "--criu", b.criu, p.live, dumped); err != nil {
		return err
	}
	now, err := processorTime(d)
	if err != nil {
		return err
	}
	rows := map[string]string{restore.MarkResume: rowResume, restore.MarkResident: rowResident}
	if way.cold {
		rows = map[string]string{restore.MarkResume: rowResumeCold, restore.MarkResident: rowResidentCold}
	}
	for _, mark := range []string{restore.MarkResume, restore.MarkResident} {
		at, err := measure.Mark(&result.Timeline, mark)
		if err != nil {
			return err
		}
		b.note(rows[mark], p, at.Sub(begun).Seconds())
	}
	b.note(rows[restore.MarkResident]+cpu, p, (now - used).Seconds())
	if check {
		return b.process.Verified(timeout)
	}
	return nil
}

// record restores the process for a moment, so that the next restore has a profile, and waits for its hot set.
func (b *bench) record(p *place) error {
	if _, err := b.gpucr.Run(b.ctx, "restore", "--criu", b.criu, p.live, dumped); err != nil {
		return err
	}
	time.Sleep(time.Second)
	if err := b.process.Kill(); err != nil {
		return err
	}
	for end := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		kept, err := filepath.Glob(filepath.Join(p.live, "hot", "*"))
		if err == nil && len(kept) == 1 && !strings.HasSuffix(kept[0], ".new") {
			return nil
		}
		if err != nil || time.Now().After(end) {
			return errors.Join(errors.New("no hot set is kept"), err)
		}
	}
}
