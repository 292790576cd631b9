package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/tests/actors"
)

// Kinds of restores, and how the page cache stands.
const (
	kindEager   = "criu, images on tmpfs"
	kindLazy    = "criu lazy-pages, images on tmpfs"
	kindLazyUp  = "criu lazy-pages, its server up, images on tmpfs"
	kindFirst   = "gpucr-fs, first time"
	kindProfile = "gpucr-fs, with a profile"
	kindDriver  = "gpucr-fs, with the driver's reads as the profile"
	warm        = "warm"
	cold        = "cold"
)

// finish brings the GPUs back with an own client, as the restores need that are compared with, and asks the first
// question.
func (b *bench) finish(ctx context.Context, a *app, c *cuda.Client, start time.Time, x *run) error {
	if c != nil {
		began := time.Now()
		procs, err := c.Resume(ctx, a.pid, nil)
		if err != nil {
			return err
		}
		if len(procs) != a.processes {
			return fmt.Errorf("%d processes use CUDA, want %d", len(procs), a.processes)
		}
		x.Driver, x.GPU = since(began), since(start)
	}
	if _, err := a.ask(ctx, 0, questions[0]); err != nil {
		return err
	}
	x.Answer = since(start)
	return nil
}

// peer is one of the restores that are compared with: it has a client of the driver, nil without GPUs, and a work
// directory.
type peer func(c *cuda.Client, work string) (run, error)

// with prepares what a peer needs, and runs it.
func (b *bench) with(ctx context.Context, restore peer) (x run, err error) {
	var c *cuda.Client
	if b.gpu() {
		if c, err = b.driver(ctx); err != nil {
			return x, err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
	}
	work, err := os.MkdirTemp(b.o.work, "criu")
	if err != nil {
		return x, err
	}
	defer os.RemoveAll(work)
	return restore(c, work)
}

// eager restores with criu alone.
func (b *bench) eager(ctx context.Context, a *app, dir string) (run, error) {
	return b.with(ctx, func(c *cuda.Client, work string) (x run, err error) {
		start := time.Now()
		if _, err := b.command(ctx, b.o.criu, "restore", "-d", "-D", dir, "-W", work, "-o", "restore.log"); err != nil {
			return x, b.withLog(err, filepath.Join(work, "restore.log"))
		}
		x.Resume = since(start)
		x.Resident = x.Resume
		return x, b.finish(ctx, a, c, start, &x)
	})
}

// lazy restores with criu's own lazy-pages server. resume leaves the time out that the server takes to begin, and ends
// as soon as the CPU resumes: who calls it ends the process.
func (b *bench) lazy(ctx context.Context, a *app, dir string, resume bool) (run, error) {
	return b.with(ctx, func(c *cuda.Client, work string) (run, error) {
		return b.lazyWith(ctx, a, dir, c, work, resume)
	})
}

func (b *bench) lazyWith(
	ctx context.Context,
	a *app,
	dir string,
	c *cuda.Client,
	work string,
	resume bool,
) (x run, err error) {
	start := time.Now()
	server, done, err := b.prepare(b.o.criu, "lazy-pages", "-D", dir, "-W", work, "-o", "lazy.log")
	if err != nil {
		return x, err
	}
	if err := server.Start(); err != nil {
		return x, done(err)
	}
	ended := make(chan struct{})
	var served error
	var at time.Time
	go func() {
		served = done(server.Wait())
		at = time.Now()
		close(ended)
	}()
	defer func() {
		if err != nil || resume {
			server.Process.Kill()
		}
		<-ended
		if err == nil && !resume {
			x.Resident = at.Sub(start).Seconds()
			err = b.withLog(served, filepath.Join(work, "lazy.log"))
		}
	}()
	for {
		if _, err := os.Stat(filepath.Join(work, "lazy-pages.socket")); err == nil {
			break
		}
		select {
		case <-ended:
			return x, b.withLog(errors.New("criu lazy-pages ended"), filepath.Join(work, "lazy.log"))
		case <-ctx.Done():
			return x, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	if resume {
		start = time.Now()
	}
	if _, err := b.command(ctx, b.o.criu, "restore", "-d", "--lazy-pages", "-D", dir, "-W", work, "-o",
		"restore.log"); err != nil {
		return x, b.withLog(err, filepath.Join(work, "restore.log"))
	}
	if x.Resume = since(start); resume {
		return x, nil
	}
	if err := b.finish(ctx, a, c, start, &x); err != nil {
		return x, err
	}
	select {
	case <-ended:
	case <-ctx.Done():
		return x, fmt.Errorf("criu lazy-pages has not ended: %w", ctx.Err())
	}
	return x, nil
}

// ours restores with gpucr-fs. A client asks all the while.
func (b *bench) ours(ctx context.Context, a *app, name string, flags ...string) (x run, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	start := time.Now()
	type answer struct {
		at  time.Time
		err error
	}
	first := make(chan answer, 1)
	go func() {
		_, err := a.ask(ctx, 0, questions[0])
		first <- answer{time.Now(), err}
	}()
	b.runs++
	var res struct {
		Timeline struct {
			Started time.Time
			PID     int
			Profile bool
			Faults  int64
			Marks   []struct {
				Name string
				Ms   float64
			}
			Bytes map[string]int64
		}
	}
	file := filepath.Join(b.o.work, "logs", fmt.Sprintf("%03d-timeline.json", b.runs))
	args := append([]string{"restore", b.store, name, "--wait", "--criu", b.o.criu, "--timeline", file}, flags...)
	if err := b.fsJSON(ctx, &res, args...); err != nil {
		return x, err
	}
	t := res.Timeline
	if t.PID != a.pid {
		return x, fmt.Errorf("restored as process %d, it was %d", t.PID, a.pid)
	}
	offset := t.Started.Sub(start).Seconds()
	var marks []string
	for _, m := range t.Marks {
		at := offset + m.Ms/1000
		marks = append(marks, fmt.Sprintf("%s %.3f", m.Name, at))
		switch m.Name {
		case "resume":
			x.Resume = at
		case "gpu ready":
			x.GPU = at
		case "resident":
			x.Resident = at
		}
	}
	if x.GPU > 0 {
		x.Driver = x.GPU - x.Resume
	}
	one := <-first
	if one.err != nil {
		return x, one.err
	}
	x.Answer = one.at.Sub(start).Seconds()
	fmt.Fprintf(b.out, "  marks: %s; first answer %.3f; %d faults, bytes %v, profile %v\n", strings.Join(marks, ", "),
		x.Answer, t.Faults, t.Bytes, t.Profile)
	return x, nil
}

// withLog adds the errors of a log of criu's.
func (b *bench) withLog(err error, path string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w\n%s", err, criuErrors(path))
}

// killDump kills the criu of a dump, some time after it has stopped the application. A dump that is faster is tried
// again with half the time.
func (b *bench) killDump(ctx context.Context, a *app, name string, after time.Duration) error {
	for try := range 4 {
		cmd, done, err := b.prepare(b.gpucrfs, b.dumpArgs(a, fmt.Sprintf("%s-%d", name, try), true)...)
		if err != nil {
			return err
		}
		start := time.Now()
		if err := cmd.Start(); err != nil {
			return done(err)
		}
		killed := make(chan error, 1)
		go func() { killed <- killCRIU(ctx, b.dumpOf(cmd, a), after) }()
		werr := done(cmd.Wait())
		kerr := <-killed
		if werr != nil {
			fmt.Fprintf(
				b.out,
				"its criu was killed %.2f s after it had stopped the application; gpucr-fs dump said, after "+
					"%.2f s: %v\n",
				after.Seconds(),
				since(start),
				werr,
			)
			return kerr
		}
		fmt.Fprintf(b.out, "the dump was done in %.2f s, before its criu was killed (%v); again, and sooner\n",
			since(start), kerr)
		after /= 2
	}
	return errors.New("no dump could be broken off")
}

// dumpOf is what is known of a dump that command cmd does.
func (b *bench) dumpOf(cmd *exec.Cmd, a *app) *actors.Dump {
	return &actors.Dump{PID: cmd.Process.Pid, Target: a.pid, Store: b.store, Holder: b.holder}
}

// killCRIU kills the criu of a dump some time after it has stopped the processes.
func killCRIU(ctx context.Context, d *actors.Dump, after time.Duration) error {
	var stopped time.Time
	for w := actors.NewWatch(d); ctx.Err() == nil; time.Sleep(time.Millisecond) {
		step := w.Step()
		if stopped.IsZero() && (step == actors.Stopping || step == actors.Writing) {
			stopped = time.Now()
		}
		if !stopped.IsZero() && time.Since(stopped) >= after {
			if pid, err := d.Kill(actors.CRIU); pid != 0 || err != nil {
				return err
			}
		}
		if syscall.Kill(d.PID, 0) != nil || step == actors.Resuming {
			return errors.New("criu was done sooner")
		}
	}
	return ctx.Err()
}

// criuErrors gives the errors of a log of criu's.
func criuErrors(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "Error (") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, "\n")
}
