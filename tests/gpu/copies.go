package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// copySteps gives the steps of -copies.
func (b *bench) copySteps() []step {
	var apps []*app
	dumped := false
	n := b.o.copies
	alone := fmt.Sprintf("the driver alone, restore and unlock of %d suspended processes", n)
	ours := fmt.Sprintf("gpucr-fs restore --copies %d", n)
	return []step{
		{"machine", time.Minute, b.machine},
		{"start the processes", 3 * time.Minute, func(ctx context.Context) error {
			started := make([]*app, n)
			errs := make([]error, n)
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() { started[i], errs[i] = b.startPiped(ctx, fmt.Sprintf("copy-%d", i), whole) })
			}
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				return err
			}
			apps = started
			return nil
		}},
		{alone, 2 * time.Minute, func(ctx context.Context) error {
			if apps == nil {
				return errNotStarted
			}
			for i := range b.o.runs + 1 {
				x, err := b.driverAlone(ctx, apps)
				if err != nil {
					return err
				}
				b.copied(alone, x, i > 0)
			}
			return nil
		}},
		{"dump one of them", 2 * time.Minute, func(ctx context.Context) error {
			if apps == nil {
				return errNotStarted
			}
			for _, a := range apps[1:] {
				if err := a.killTree(ctx); err != nil {
					return err
				}
			}
			if err := b.dump(ctx, apps[0], "copy", false); err != nil {
				return err
			}
			dumped = true
			return errors.Join(b.mounted(ctx), b.readPacks())
		}},
		{ours, b.o.budget, func(ctx context.Context) error {
			if !dumped {
				return errNothing
			}
			for i := range b.o.runs + 1 {
				x, err := b.copyOnce(ctx, apps[0], "copy")
				if err != nil {
					return fmt.Errorf("run %d: %w", i+1, err)
				}
				b.copied(ours, x, i > 0)
			}
			got, bound := b.res.copies(ours).median(answered), 1.25*b.res.copies(alone).median(gpuReady)
			b.res.aim(fmt.Sprintf("last first answer of %d copies, 1.25 × the driver alone", n), bound, got)
			return nil
		}},
		{"on another GPU", 3 * time.Minute, b.otherGPU},
	}
}

var errNothing = errors.New("there is no checkpoint to restore")

// copied keeps the times of some processes; those of the first run are not counted.
func (b *bench) copied(kind string, x run, counts bool) {
	s := b.res.copies(kind)
	note := " (not counted)"
	if counts {
		s.Runs, note = append(s.Runs, x), ""
	}
	fmt.Fprintf(b.out, "%s: last CPU resume %s, last GPU ready %s, last first answer %s, all resident %s%s\n", kind,
		seconds(x.Resume), seconds(x.GPU), seconds(x.Answer), seconds(x.Resident), note)
}

// last makes x the later one of each time.
func (x *run) last(y run) {
	x.Resume, x.GPU = max(x.Resume, y.Resume), max(x.GPU, y.GPU)
	x.Answer, x.Resident = max(x.Answer, y.Answer), max(x.Resident, y.Resident)
}

// driverAlone takes the GPUs of processes that run, and measures how long the driver takes to give them back to all at
// once.
func (b *bench) driverAlone(ctx context.Context, apps []*app) (x run, err error) {
	c, err := b.driver(ctx)
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for _, a := range apps {
		if _, err := c.Suspend(ctx, a.pid, 10*time.Second, a.pid); err != nil { // it does not stand still
			return x, err
		}
	}
	start := time.Now()
	runs := make([]run, len(apps))
	errs := make([]error, len(apps))
	var wg sync.WaitGroup
	for i, a := range apps {
		wg.Go(func() {
			if _, errs[i] = c.Resume(ctx, a.pid, nil); errs[i] != nil {
				return
			}
			runs[i].GPU = since(start)
			_, errs[i] = a.ask(ctx, 0, questions[0])
			runs[i].Answer = since(start)
		})
	}
	wg.Wait()
	for i, a := range apps {
		x.last(runs[i])
		if errs[i] == nil {
			errs[i] = a.verify(ctx)
		}
	}
	return x, errors.Join(errs...)
}

// copyOnce restores the copies at once, asks each as soon as it is there, and ends them when all have answered right.
func (b *bench) copyOnce(ctx context.Context, a *app, name string) (x run, err error) {
	start := time.Now()
	var res struct {
		Copies []struct {
			Timeline struct {
				Started time.Time
				PID     int
				Marks   []struct {
					Name string
					Ms   float64
				}
			}
		}
	}
	ended := make(chan error, 1)
	go func() {
		ended <- b.fsJSON(ctx, &res, "restore", b.store, name, "--copies",
			strconv.Itoa(b.o.copies), "--wait", "--criu", b.o.criu)
	}()
	copies, asked := b.findCopies(ctx, a, start, ended)
	defer func() {
		kctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		for _, c := range copies {
			err = errors.Join(err, c.killTree(kctx))
		}
	}()
	for range copies {
		one := <-asked
		if one.err != nil {
			err = errors.Join(err, one.err)
		}
		x.last(run{Answer: one.seconds})
	}
	if err = errors.Join(err, <-ended); err != nil {
		return x, err
	}
	if len(copies) != b.o.copies || len(res.Copies) != b.o.copies {
		return x, fmt.Errorf("%d copies answer, and %d are restored, of %d", len(copies), len(res.Copies), b.o.copies)
	}
	for _, c := range res.Copies {
		offset := c.Timeline.Started.Sub(start).Seconds()
		for _, m := range c.Timeline.Marks {
			at := offset + m.Ms/1000
			switch m.Name {
			case "resume":
				x.last(run{Resume: at})
			case "gpu ready":
				x.last(run{GPU: at})
			case "resident":
				x.last(run{Resident: at})
			}
		}
	}
	for _, c := range copies {
		err = errors.Join(err, c.verify(ctx))
	}
	return x, err
}

// firstAnswer is when a copy answered.
type firstAnswer struct {
	seconds float64
	err     error
}

// findCopies looks for the copies while they are restored, and asks each. It ends with the last one, or with the
// restore, whose end it leaves in ended.
func (b *bench) findCopies(
	ctx context.Context,
	a *app,
	start time.Time,
	ended chan error,
) ([]*app, <-chan firstAnswer) {
	asked := make(chan firstAnswer, b.o.copies)
	var copies []*app
	seen := map[int]bool{}
	for over := false; ; {
		for _, pid := range inside(a.pid) {
			if seen[pid] || len(copies) == b.o.copies {
				continue
			}
			seen[pid] = true
			c := &app{name: fmt.Sprintf("the copy of %s that is process %d", a.name, pid), pid: pid, processes: 1,
				answers: a.answers, piped: true}
			copies = append(copies, c)
			go func() {
				answer, err := c.ask(ctx, 0, questions[0])
				if err == nil && answer != c.answers[0][0] {
					err = fmt.Errorf("WRONG ANSWER of %s: %s, and %s before", c.name, answer, c.answers[0][0])
				}
				asked <- firstAnswer{since(start), err}
			}()
		}
		if over || len(copies) == b.o.copies {
			return copies, asked
		}
		select {
		case err := <-ended:
			ended <- err
			over = true // one more look
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// inside lists the processes that have a pid in a pid namespace below ours, and pipes.
func inside(pid int) (pids []int) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, p := range procs {
		outer, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", outer))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(status), "\nNSpid:")
		line, _, _ := strings.Cut(rest, "\n")
		if f := strings.Fields(line); len(f) > 1 && f[len(f)-1] == strconv.Itoa(pid) && hasPipes(outer) {
			pids = append(pids, outer)
		}
	}
	return pids
}

// otherGPU dumps a process that uses the first GPU, and restores it where only the second is shown.
func (b *bench) otherGPU(ctx context.Context) error {
	c, err := b.driver(ctx)
	if err != nil {
		return err
	}
	info, err := c.Info(ctx)
	if err = errors.Join(err, c.Close()); err != nil {
		return err
	}
	if len(info.Devices) < 2 {
		b.fact("not run: a restore on another GPU needs two")
		return nil
	}
	a, err := b.start(ctx, "mover", 1, small)
	if err != nil {
		return err
	}
	where := b.gpusOf(ctx, a)
	if err := b.dump(ctx, a, "mover", false); err != nil {
		return err
	}
	shown := info.Devices[1]
	const hide = "CUDA_VISIBLE_DEVICES"
	old, was := os.LookupEnv(hide)
	os.Setenv(hide, shown.UUID.String())
	defer func() {
		if os.Unsetenv(hide); was {
			os.Setenv(hide, old)
		}
	}()
	x, err := b.ours(ctx, a, "mover")
	if err == nil {
		err = a.verify(ctx)
	}
	if err != nil {
		return err
	}
	now := b.gpusOf(ctx, a)
	b.fact(
		"dumped on %q, restored with %s=%v: on %q, GPU ready %s, the same answers", where, hide, shown.UUID, now,
		seconds(x.GPU),
	)
	if len(now) == 1 && now[0] != shown.UUID.String() {
		return fmt.Errorf("it was to be restored on %v, and is on %v", shown.UUID, now[0])
	}
	return a.kill(ctx)
}

// gpusOf gives the GPUs on which an application has contexts, where that can be told.
func (b *bench) gpusOf(ctx context.Context, a *app) (uuids []string) {
	out, _ := b.fs(ctx, "check", "--pid", strconv.Itoa(a.pid), "--json")
	var report struct{ GPUs []struct{ UUID string } }
	if json.Unmarshal([]byte(out), &report) != nil {
		return nil
	}
	for _, g := range report.GPUs {
		uuids = append(uuids, g.UUID)
	}
	return uuids
}
