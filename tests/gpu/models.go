package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpucr/gpucr-fs/cuda"
)

// dumpRun is one dump: seconds. Zero: not measured.
type dumpRun struct {
	Lock       float64 `json:"lock"`
	Checkpoint float64 `json:"checkpoint"`
	CRIU       float64 `json:"criu"`
	All        float64 `json:"all"`
	Back       float64 `json:"back"` // until the process has its GPU again
}

func locked(x dumpRun) float64       { return x.Lock }
func checkpointed(x dumpRun) float64 { return x.Checkpoint }
func byCRIU(x dumpRun) float64       { return x.CRIU }
func all(x dumpRun) float64          { return x.All }
func back(x dumpRun) float64         { return x.Back }

// model is a large model that is measured.
type model struct {
	*bench
	name   string
	size   int64 // of its images, about
	a      *app
	stored bool // both checkpoints are there: criu's in images, ours in the store
}

// modelName is the checkpoint's.
const modelName = "model"

// modelSteps gives the steps of -models: dumps beside the bare steps that they are made of, then rounds of restores,
// each kind once a round.
func (b *bench) modelSteps() []step {
	steps := []step{{"machine", time.Minute, b.machine}}
	for _, name := range strings.Split(b.o.models, ",") {
		m := &model{bench: b, name: name}
		steps = append(
			steps, step{name + ": start", 3 * time.Minute, m.begin}, step{name + ": dumps", b.o.budget, m.dumps},
			step{name + ": restores", b.o.budget, m.restores}, step{name + ": end", time.Minute, m.end},
		)
	}
	return steps
}

// parseSize reads 14g or 64m.
func parseSize(s string) (int64, error) {
	units := map[string]int64{"m": 1e6, "g": 1e9}
	n, err := strconv.ParseInt(s[:max(len(s)-1, 0)], 10, 64)
	if err != nil || n <= 0 || units[s[len(s)-1:]] == 0 {
		return 0, fmt.Errorf("-models %s: a size is a number with m or g, such as 14g", s)
	}
	return n * units[s[len(s)-1:]], nil
}

// sized gives a model whose images take about so much: 16-bit weights, and what PyTorch and the driver have beside
// them.
func sized(bytes int64) shape {
	const beside, vocabulary, perHead = 800e6, 50257, 128
	width := int64(1024)
	if bytes > 4e9 {
		width = 4096
	}
	if bytes > 20e9 {
		width = 5120
	}
	layers := max((max(bytes-beside, 0)/2-vocabulary*width)/(12*width*width), 1)
	n := func(x int64) string { return strconv.FormatInt(x, 10) }
	return shape{
		[]string{"--dtype", "bfloat16", "--layers", n(layers), "--width", n(width), "--heads", n(width / perHead)},
		int(bytes >> 20),
	}
}

func (m *model) begin(ctx context.Context) (err error) {
	m.subject = m.name + ", "
	if m.size, err = parseSize(m.name); err != nil {
		return err
	}
	tmpfs := filepath.Dir(m.images)
	if _, err := os.Stat(tmpfs); err != nil {
		if err := mountTmpfs(tmpfs); err != nil {
			return err
		}
	}
	a, err := m.start(ctx, "model-"+m.name, 1, sized(m.size))
	if err != nil {
		return err
	}
	info, err := a.say(ctx, 0, "info")
	m.fact("%s: it says %q", m.name, info)
	m.a = a
	return err
}

// reserve is what the end of a model takes.
const reserve = 15 * time.Second

// enough tells whether the time is left for another round that takes as long as the longest so far.
func (m *model) enough(ctx context.Context, what string, done, of int, longest time.Duration) bool {
	deadline, ok := ctx.Deadline()
	if done == 0 || !ok || time.Until(deadline) > longest+longest/8+reserve {
		return true
	}
	m.fact("%s: the budget ended after %d of %d rounds of %s", m.name, done, of, what)
	return false
}

// dumps measures dumps, each into a store of its own, in turns with the bare steps. The process ends with each dump, as
// nobody would call the way back a part of it, and is restored.
func (m *model) dumps(ctx context.Context) error {
	if m.a == nil {
		return errNotStarted
	}
	bare, ours := m.name+", bare steps: lock, checkpoint, criu dump to tmpfs", m.name+", gpucr-fs dump"
	longest := time.Duration(0)
	for i := 0; i < m.o.dumps && m.enough(ctx, "dumps", i, m.o.dumps, longest); i++ {
		start := time.Now()
		if i > 0 {
			if _, err := m.ours(ctx, m.a, modelName); err != nil {
				return err
			}
			if err := m.a.verify(ctx); err != nil {
				return err
			}
		}
		m.stored = false
		x, err := m.bare(ctx)
		if err != nil {
			return err
		}
		m.dumped(bare, x)
		if err := m.freshStore(ctx); err != nil {
			return err
		}
		if err := m.dump(ctx, m.a, modelName, false); err != nil {
			return err
		}
		m.dumped(ours, dumpRun{All: m.dumpTook.Seconds()})
		m.stored = true
		longest = max(longest, time.Since(start))
	}
	m.res.aim(ours+", 1.1 × the bare steps", 1.1*m.res.dumps(bare).median(all), m.res.dumps(ours).median(all))
	return nil
}

// dumped keeps the times of a dump.
func (m *model) dumped(what string, x dumpRun) {
	s := m.res.dumps(what)
	s.Runs = append(s.Runs, x)
	fmt.Fprintf(m.out, "%s: lock %s, checkpoint %s, criu %s, all %s, the way back %s\n", what, seconds(x.Lock),
		seconds(x.Checkpoint), seconds(x.CRIU), seconds(x.All), seconds(x.Back))
}

// freshStore makes the store anew: what is dumped is to be new to it.
func (m *model) freshStore(ctx context.Context) error {
	if err := m.quiet(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(m.store); err != nil {
		return err
	}
	_, err := m.fs(ctx, "init", m.store)
	return err
}

// bare dumps the process as it can be done by hand, and lets it run on.
func (m *model) bare(ctx context.Context) (x dumpRun, err error) {
	if err := os.RemoveAll(m.images); err != nil {
		return x, err
	}
	if err := os.MkdirAll(m.images, 0o700); err != nil {
		return x, err
	}
	_, err = m.with(ctx, func(c *cuda.Client, work string) (_ run, err error) {
		start := time.Now()
		undo := func() error { return nil }
		if c != nil {
			s, err := c.Suspend(ctx, m.a.pid, 10*time.Second, m.a.pid) // by the driver alone: it does not stand still
			if err != nil {
				return run{}, err
			}
			x.Lock, x.Checkpoint, undo = s.LockTime.Seconds(), s.CheckpointTime.Seconds(), s.Undo
		}
		began := time.Now()
		// criu's plugins are left out, as gpucr-fs leaves them out.
		_, err = m.command(
			ctx, m.o.criu, "dump", "-t", strconv.Itoa(m.a.pid), "-D", m.images, "-W", work, "-o", "dump.log",
			"--leave-running", "--libdir", work,
		)
		x.CRIU, x.All = since(began), since(start)
		err = m.withLog(err, filepath.Join(work, "dump.log"))
		began = time.Now()
		err = errors.Join(err, undo())
		x.Back = since(began)
		return run{}, err
	})
	return x, errors.Join(err, m.a.verify(ctx))
}

// restores measures all kinds of restores in turns. The first round is not counted, and has no others than those that
// take memory and load libraries for the rest. Who follows whom is turned around each time for the two that are held
// against each other: how fast a restore gets memory depends on who gave that memory back.
func (m *model) restores(ctx context.Context) error {
	if !m.stored {
		return errNothing
	}
	if err := errors.Join(m.mounted(ctx), m.readPacks()); err != nil {
		return err
	}
	ours := func(ctx context.Context) (run, error) { return m.ours(ctx, m.a, modelName) }
	kinds := []struct {
		kind   string
		before func(context.Context) error
		do     func(context.Context) (run, error)
		always bool
	}{
		{kindEager, nil, func(ctx context.Context) (run, error) { return m.eager(ctx, m.a, m.images) }, true},
		{kindFirst, func(ctx context.Context) error {
			_, err := m.fs(ctx, "profile", "clear", m.store, modelName)
			return err
		}, ours, true},
		{kindProfile, nil, ours, false},
	}
	longest := time.Duration(0)
	var failed []error
	for i := 0; i <= m.o.runs && m.enough(ctx, "restores", i, m.o.runs+1, longest); i++ {
		start := time.Now()
		if i > 1 { // there is a profile by now
			kinds[1], kinds[2] = kinds[2], kinds[1]
		}
		for _, k := range kinds {
			if i == 0 && !k.always {
				continue
			}
			if err := m.restoreOnce(ctx, m.a, i, k.kind, warm, k.before, k.do); err != nil {
				failed = append(failed, fmt.Errorf("round %d, %s: %w", i, k.kind, err))
			}
		}
		if i > 0 {
			if err := m.lazyResume(ctx); err != nil {
				failed = append(failed, fmt.Errorf("round %d, %s: %w", i, kindLazyUp, err))
			}
		}
		if i > 0 || m.o.runs == 0 { // the first round has fewer
			longest = max(longest, time.Since(start))
		} else {
			longest = 2 * time.Since(start)
		}
	}
	m.aims()
	return errors.Join(failed...)
}

// lazyResume measures how soon the CPU resumes with criu lazy-pages, and ends the process then: its GPU would be ready
// half a minute later, which is compared with nothing.
func (m *model) lazyResume(ctx context.Context) error {
	x, err := m.lazy(ctx, m.a, m.images, true)
	if err == nil {
		m.res.add(m.subject+kindLazyUp, warm, x)
		fmt.Fprintf(m.out, "%s, %s: CPU resume %s, and ended\n", m.subject+kindLazyUp, warm, seconds(x.Resume))
	}
	kctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	return errors.Join(err, m.a.kill(kctx))
}

// aims holds the restores against what they are to reach.
func (m *model) aims() {
	median := func(kind string, f func(run) float64) float64 { return m.res.find(m.subject+kind, warm).median(f) }
	eager, lazy := median(kindEager, answered), median(kindLazyUp, resume)
	for _, kind := range []string{kindFirst, kindProfile} {
		what := m.subject + kind
		m.res.aim("CPU resume, "+what+": 0.1 s, or criu lazy-pages' + 0.03", max(0.1, lazy+0.03), median(kind, resume))
		m.res.aim("first answer, "+what+": 0.3 × eager criu's", 0.3*eager, median(kind, answered))
		m.res.aim("first answer, "+what+": the driver's own restore + 0.35 s", plus(median(kindEager, driver), 0.35),
			median(kind, answered))
	}
	m.res.aim("first answer, "+m.name+", with a profile: no later than the first time", median(kindFirst, answered),
		median(kindProfile, answered))
}

// plus adds to what was measured.
func plus(measured, more float64) float64 {
	if measured == 0 {
		return 0
	}
	return measured + more
}

// end gives back what the model took.
func (m *model) end(ctx context.Context) error {
	if m.a == nil {
		return nil
	}
	err := errors.Join(m.a.killTree(ctx), os.RemoveAll(m.images))
	m.subject = ""
	return errors.Join(err, m.freshStore(ctx))
}
