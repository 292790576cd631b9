package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/tests/measure"
	"github.com/gpucr/gpucr-fs/tests/workload"
)

// start runs a workload in a folder of its own, with further options. Heap seeds tell processes apart; the model is
// always the same.
func (b *bench) start(name string, mb, heapSeed int, more ...string) (*workload.Process, error) {
	dir := filepath.Join(b.dir, "process-"+name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	args := []string{"--mem", strconv.Itoa(mb), "--child-mem", strconv.Itoa(max(2, mb/60)), "--model-seed", "42",
		"--heap-seed", strconv.Itoa(heapSeed), "--check-rate", "500"}
	return workload.Start(b.bin, dir, append(args, more...)...)
}

// dump dumps a process that runs on, or ends it.
func (b *bench) dump(p *workload.Process, images string, runsOn bool) (seconds float64, err error) {
	args := []string{"dump", "-t", strconv.Itoa(p.PID), "-D", images}
	if runsOn {
		args = append(args, "--leave-running")
	}
	if err := os.MkdirAll(images, 0o755); err != nil {
		return 0, err
	}
	begun := time.Now()
	_, err = command("", nil, b.criu, args...)
	return time.Since(begun).Seconds(), err
}

// makeDumps makes the four dumps: three of one process as time goes by, one of another.
func (b *bench) makeDumps() (err error) {
	say("starting two processes of %d MB", b.memMB)
	one, err := b.start("one", b.memMB, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, one.Kill()) }()
	two, err := b.start("two", b.memMB, 2)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, two.Kill()) }()
	for i, p := range []*workload.Process{one, one, one, two} {
		if i == 1 || i == 2 {
			time.Sleep(time.Duration(b.pause * float64(time.Second)))
		}
		dir := filepath.Join(b.dir, fmt.Sprintf("dump%d", i))
		seconds, err := b.dump(p, dir, true)
		if err != nil {
			return err
		}
		size, err := measure.DiskBytes(dir)
		if err != nil {
			return err
		}
		say("dump %d  process %d, %d MB, %.2f s", i, p.PID, size/1e6, seconds)
		b.dumps = append(b.dumps, dir)
	}
	return nil
}

// dumped dumps and ends a process.
func (b *bench) dumped(name string, p *workload.Process) (images string, err error) {
	images = filepath.Join(b.dir, name+"-images")
	if _, err := b.dump(p, images, false); err != nil {
		return "", errors.Join(err, p.Kill())
	}
	return images, p.Gone(time.Minute)
}

// restore restores images that are in the page cache, verifies the process's memory if asked, and ends it.
func (b *bench) restore(p *workload.Process, images string, verify bool) (seconds float64, err error) {
	if err := measure.ReadTree(images); err != nil {
		return 0, err
	}
	work := filepath.Join(b.dir, "criu-work")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return 0, err
	}
	begun := time.Now()
	_, err = command("", nil, b.criu, "restore", "-d", "-D", images, "-W", work)
	seconds = time.Since(begun).Seconds()
	if err != nil {
		return 0, err
	}
	if verify {
		err = p.Verified(2 * time.Minute)
	}
	return seconds, errors.Join(err, p.Kill())
}

func (b *bench) measureRestore() (err error) {
	p, err := b.start("restore", b.restoreMB, 3)
	if err != nil {
		return err
	}
	images, err := b.dumped("restore", p)
	if err != nil {
		return err
	}
	store, mnt := filepath.Join(b.dir, "restore-store"), filepath.Join(b.dir, "restore-mnt")
	if err := b.newStore(store, mnt); err != nil {
		return err
	}
	if _, err := b.gpucr.Run(b.ctx, "import", store, "process", images); err != nil {
		return err
	}
	if _, err := b.gpucr.Run(b.ctx, "mount", store, mnt); err != nil {
		return err
	}
	defer func() {
		_, umountErr := b.gpucr.Run(b.ctx, "umount", mnt)
		err = errors.Join(err, umountErr, os.RemoveAll(store))
	}()
	for round := range b.rounds {
		for _, side := range []struct{ name, images string }{{"restore ext4", images}, {"restore mount", mnt}} {
			seconds, err := b.restore(p, side.images, round == 0)
			if err != nil {
				return fmt.Errorf("%s: %w", side.name, err)
			}
			b.results.add(side.name, seconds)
			say("%-14s %.2f s", side.name, seconds)
		}
	}
	return nil
}

func (b *bench) newStore(store, mnt string) error {
	if err := errors.Join(os.RemoveAll(store), os.MkdirAll(mnt, 0o755)); err != nil {
		return err
	}
	_, err := b.gpucr.Run(b.ctx, "init", store)
	return err
}

// dumpSealed dumps into a mounted store and waits until the checkpoint is listed as sealed.
func (b *bench) dumpSealed(p *workload.Process, store, mnt, name string) (seconds float64, err error) {
	begun := time.Now()
	if _, err := b.dump(p, filepath.Join(mnt, ".checkpoints", name), true); err != nil {
		return 0, err
	}
	for end := begun.Add(2 * time.Minute); time.Now().Before(end); {
		states, err := b.gpucr.States(b.ctx, store)
		if err != nil {
			return 0, err
		}
		if states[name] == index.Sealed {
			return time.Since(begun).Seconds(), nil
		}
	}
	return 0, fmt.Errorf("checkpoint %s is not sealed two minutes after its dump", name)
}

func (b *bench) measureDump() (err error) {
	p, err := b.start("dump", b.memMB, 4)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Kill()) }()
	plain, store, mnt := filepath.Join(b.dir, "dump-ext4"), filepath.Join(b.dir, "dump-store"),
		filepath.Join(b.dir, "dump-mnt")
	for range b.rounds {
		measure.Sync()
		seconds, err := b.dump(p, plain, true)
		if err != nil {
			return err
		}
		begun := time.Now()
		measure.Sync()
		synced := seconds + time.Since(begun).Seconds()
		b.results.add("dump ext4", seconds)
		b.results.add("dump ext4 synced", synced)
		say("%-17s %.2f s, synced %.2f s", "dump ext4", seconds, synced)
		if err := errors.Join(os.RemoveAll(plain), b.newStore(store, mnt)); err != nil {
			return err
		}
		if _, err := b.gpucr.Run(b.ctx, "mount", store, mnt); err != nil {
			return err
		}
		for _, name := range []string{"first", "second"} {
			measure.Sync()
			seconds, err := b.dumpSealed(p, store, mnt, name)
			if err != nil {
				_, umountErr := b.gpucr.Run(b.ctx, "umount", mnt)
				return errors.Join(err, umountErr)
			}
			b.results.add("dump mount "+name, seconds)
			say("%-17s %.2f s", "dump mount "+name, seconds)
		}
		if _, err := b.gpucr.Run(b.ctx, "umount", mnt); err != nil {
			return err
		}
	}
	return os.RemoveAll(store)
}
