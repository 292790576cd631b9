package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpucr/gpucr-fs/tests/lazytarget"
	"github.com/gpucr/gpucr-fs/tests/measure"
)

// timeout bounds every wait.
const timeout = 5 * time.Minute

// subject is the process being restored, with its images.
type subject struct {
	*lazytarget.Target
	pid, mb            int
	images, store, mnt string
}

// size measures processes of one size.
func (b *bench) size(bin string, mb int) (err error) {
	dir := filepath.Join(b.dir, strconv.Itoa(mb))
	s := &subject{mb: mb, images: filepath.Join(dir, "images"), store: filepath.Join(dir, "store"),
		mnt: filepath.Join(dir, "mnt")}
	if err := errors.Join(os.MkdirAll(s.images, 0o755), os.MkdirAll(s.mnt, 0o755)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	say("%d MB: starting the process, dumping it, importing the dump", mb)
	if s.Target, err = lazytarget.Start(bin, dir,
		lazytarget.Options{MB: mb, Threads: 1, Seed: 17, Quiet: true}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	defer s.Kill()
	s.pid = s.PID
	if err := b.command(b.criu, "dump", "-D", s.images, "-t", strconv.Itoa(s.pid)); err != nil {
		return err
	}
	if err := s.Dumped(); err != nil {
		return err
	}
	if _, err := b.gpucr.Run(b.ctx, "init", s.store); err != nil {
		return err
	}
	if _, err := b.gpucr.Run(b.ctx, "import", s.store, checkpointName, s.images); err != nil {
		return err
	}
	measure.Sync()
	for round := range b.rounds {
		for _, state := range b.states {
			for _, w := range ways {
				if !b.takes(w.name) {
					continue
				}
				if err := b.one(s, w, state, round == 0); err != nil {
					return fmt.Errorf("%s, %s: %w", w.name, state, err)
				}
			}
		}
	}
	return nil
}

// one restores the process once and ends it.
func (b *bench) one(s *subject, w way, state string, verify bool) (err error) {
	work := filepath.Join(b.dir, "work")
	if err := errors.Join(os.RemoveAll(work), os.MkdirAll(work, 0o755)); err != nil {
		return err
	}
	r, err := w.prepare(b, s, work)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.done()) }()
	if err := b.bringTo(s, w, state); err != nil {
		return err
	}
	s.Reset()
	s.ArmHot()
	defer s.Kill()
	begun := time.Now()
	resumed, err := r.restore()
	if err != nil {
		return err
	}
	s.Restored(s.pid)
	if err := s.HotPassed(timeout); err != nil {
		return err
	}
	response := s.HotTime()
	at, err := r.resident()
	if err != nil {
		return err
	}
	if at.IsZero() {
		at = resumed
	}
	if verify {
		if err := s.Check(1, timeout); err != nil {
			return err
		}
	}
	f := figures{Resume: resumed.Sub(begun).Seconds(), Response: response.Sub(begun).Seconds(),
		Resident: at.Sub(begun).Seconds(), PeakMB: r.peakMB()}
	b.results.add(s.mb, state, w.name, f)
	say("%5d MB  %s  %-20s resume %6.3f  response %6.3f  resident %6.3f  %s", s.mb, state, w.name, f.Resume, f.Response,
		f.Resident, f.peak())
	s.Kill()
	return nil
}

// bringTo makes the page cache what the state says, and memory fast.
func (b *bench) bringTo(s *subject, w way, state string) error {
	need := int64(s.mb) << 20
	if state == warm {
		if err := measure.ReadTree(w.source(s)); err != nil {
			return err
		}
	} else {
		if err := measure.DropCaches(); err != nil {
			return err
		}
		need *= 2
	}
	_, err := measure.Freshen(need + need/4 + 256<<20)
	return err
}

// command runs criu and tells the end of its log when it fails.
func (b *bench) command(name string, args ...string) error {
	log := filepath.Join(b.dir, "criu.log")
	cmd := exec.CommandContext(b.ctx, name, append(args, "-o", log)...)
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(log)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		return fmt.Errorf("criu %s: %w: %s", args[0], err, strings.Join(lines[max(0, len(lines)-5):], "; "))
	}
	return nil
}
