package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// steps gives the whole show, the most telling parts first: the time is limited.
func (b *bench) steps() []step {
	var one, two, tree *app
	var dumped time.Time
	prepared := false // the second checkpoint is exported to tmpfs
	recorded := false // with the driver's reads
	need := func(a **app, f func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			if *a == nil {
				return errors.New("the application did not start")
			}
			return f(ctx)
		}
	}
	restores := func(n int, kind, cache string, before func(context.Context) error,
		restore func(context.Context) (run, error)) func(context.Context) error {
		return need(&two, func(ctx context.Context) error {
			if !prepared {
				return errors.New("there is no checkpoint to restore")
			}
			var failed []error
			for i := range n {
				if err := b.restoreOnce(ctx, two, i, kind, cache, before, restore); err != nil {
					failed = append(failed, fmt.Errorf("run %d: %w", i+1, err))
				}
			}
			return errors.Join(failed...)
		})
	}
	ours := func(ctx context.Context) (run, error) { return b.ours(ctx, two, "second") }
	eager := func(ctx context.Context) (run, error) { return b.eager(ctx, two, b.images) }
	lazy := func(ctx context.Context) (run, error) { return b.lazy(ctx, two, b.images, false) }
	clear := func(ctx context.Context) error {
		_, err := b.fs(ctx, "profile", "clear", b.store, "second")
		return err
	}
	chill := func(ctx context.Context) error {
		if err := b.quiet(ctx); err != nil {
			return err
		}
		return dropCaches()
	}
	return []step{
		{"machine", time.Minute, b.machine},
		{"start the applications", 2 * time.Minute, func(ctx context.Context) error {
			var errs [3]error
			var wg sync.WaitGroup
			for i, s := range []struct {
				into      **app
				name      string
				processes int
				size      shape
			}{{&one, "first", 1, whole}, {&two, "second", 1, whole}, {&tree, "tree", 2, small}} {
				wg.Go(func() {
					if a, err := b.start(ctx, s.name, s.processes, s.size); err != nil {
						errs[i] = err
					} else {
						*s.into = a
					}
				})
			}
			wg.Wait()
			for _, a := range []*app{one, two, tree} {
				if a != nil {
					info, _ := a.say(ctx, 0, "info")
					b.fact("%s: process %d, %d processes; it says %q", a.name, a.pid, a.processes, info)
				}
			}
			return errors.Join(errs[:]...)
		}},
		{"dump --leave-running", time.Minute, need(&one, func(ctx context.Context) error {
			if err := b.dump(ctx, one, "first", true); err != nil {
				return err
			}
			dumped = time.Now()
			if err := one.verify(ctx); err != nil {
				return err
			}
			b.fact("--leave-running: dumped in %.2f s; the application goes on and gives the same answers",
				b.dumpTook.Seconds())
			return nil
		})},
		{"dump a second process of the model", time.Minute, need(&two, func(ctx context.Context) error {
			return b.dump(ctx, two, "second", false)
		})},
		{"export for criu", time.Minute, need(&two, func(ctx context.Context) error {
			tmpfs := filepath.Dir(b.images)
			if err := mountTmpfs(tmpfs); err != nil {
				return err
			}
			if _, err := b.fs(ctx, "export", b.store, "second", b.images); err != nil {
				return err
			}
			prepared = true
			return nil
		})},
		{"restores: " + kindEager, 90 * time.Second, restores(b.o.runs+1, kindEager, warm, nil, eager)},
		{"restores: " + kindFirst + ", warm", 90 * time.Second,
			restores(b.o.runs+1, kindFirst, warm, func(ctx context.Context) error {
				if err := b.mounted(ctx); err != nil {
					return err
				}
				return errors.Join(clear(ctx), b.readPacks())
			}, ours)},
		{"restores: " + kindProfile + ", warm", 60 * time.Second,
			restores(b.o.runs, kindProfile, warm, func(context.Context) error { return b.readPacks() }, ours)},
		{"restores: " + kindLazy, 90 * time.Second, restores(b.o.runs, kindLazy, warm, nil, lazy)},
		{"dumps whose criu is killed", 90 * time.Second, need(&tree, func(ctx context.Context) error {
			took := b.dumpTook
			for i, part := range []float64{0.05, 0.3} {
				if err := b.killDump(ctx, tree, fmt.Sprintf("killed-%d", i),
					time.Duration(part*float64(took))); err != nil {
					return err
				}
				if err := tree.verify(ctx); err != nil {
					return fmt.Errorf("after the failed dump: %w", err)
				}
			}
			b.fact("two dumps failed midway, their criu killed: the application goes on and gives the same answers")
			return nil
		})},
		{"two GPU processes in one tree", 90 * time.Second, need(&tree, func(ctx context.Context) error {
			if err := b.dump(ctx, tree, "tree", false); err != nil {
				return err
			}
			x, err := b.ours(ctx, tree, "tree")
			if err != nil {
				return err
			}
			if err := tree.verify(ctx); err != nil {
				return err
			}
			b.fact(
				"a tree of %d GPU processes: CPU resume %.3f s, GPU ready %.3f s, resident %.3f s; all "+
					"answer as before",
				tree.processes,
				x.Resume,
				x.GPU,
				x.Resident,
			)
			return tree.kill(ctx)
		})},
		{"restores: " + kindFirst + ", cold", 90 * time.Second,
			restores(b.o.runs, kindFirst, cold, func(ctx context.Context) error {
				return errors.Join(clear(ctx), chill(ctx))
			}, ours)},
		{"restores: " + kindProfile + ", cold", 90 * time.Second, restores(b.o.runs, kindProfile, cold, chill, ours)},
		{"dump the first process again", b.o.apart + time.Minute, need(&one, func(ctx context.Context) error {
			select {
			case <-time.After(b.o.apart - time.Since(dumped)):
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := b.dump(ctx, one, "first-later", true); err != nil {
				return err
			}
			b.fact("the first process was dumped again after %.0f s", time.Since(dumped).Seconds())
			return one.verify(ctx)
		})},
		{"restores: " + kindDriver, 60 * time.Second, restores(3, kindDriver, warm, func(ctx context.Context) error {
			return errors.Join(b.mounted(ctx), b.readPacks())
		}, func(ctx context.Context) (run, error) {
			// The first records it.
			if !recorded {
				recorded = true
				if err := clear(ctx); err != nil {
					return run{}, err
				}
			}
			return b.ours(ctx, two, "second", "--record-gpu")
		})},
		{"cycles", b.o.budget, need(&one, func(ctx context.Context) error { return b.cycles(ctx, one) })},
	}
}

// mountTmpfs makes a file system in memory.
func mountTmpfs(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return unix.Mount("tmpfs", dir, "tmpfs", 0, "size=75%,mode=700")
}

// matrixSteps gives the steps of -matrix.
func (b *bench) matrixSteps() []step {
	return []step{
		{"machine", time.Minute, b.machine},
		{"programs", b.o.budget, func(ctx context.Context) error { return b.matrix(ctx, b.o.only) }},
	}
}

// restoreOnce prepares, measures and clears up one restore. The first of the eager and of our own is not counted: it
// takes memory and loads libraries for those that follow, or records what they replay.
func (b *bench) restoreOnce(ctx context.Context, a *app, i int, kind, cache string, before func(context.Context) error,
	restore func(context.Context) (run, error)) error {
	if before != nil {
		if err := before(ctx); err != nil {
			return err
		}
	}
	x, err := restore(ctx)
	if err == nil {
		err = a.verify(ctx)
	}
	if err == nil {
		counted := ""
		if i == 0 && cache == warm && kind != kindProfile && kind != kindLazy {
			counted = " (not counted)"
		} else {
			b.res.add(b.subject+kind, cache, x)
		}
		fmt.Fprintf(b.out, "%s, %s: CPU resume %s, GPU ready %s, first answer %s, resident %s, of it the driver %s%s\n",
			b.subject+kind, cache, seconds(x.Resume), seconds(x.GPU), seconds(x.Answer),
			seconds(x.Resident), seconds(x.Driver), counted)
	}
	kctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	return errors.Join(err, a.kill(kctx))
}

// cycles dumps and restores an application again and again.
func (b *bench) cycles(ctx context.Context, a *app) error {
	done := 0
	defer func() { b.fact("%d of %d cycles of dump and restore in a row without a failure", done, b.o.cycles) }()
	for i := range b.o.cycles {
		start := time.Now()
		name := fmt.Sprintf("cycle-%02d", i+1)
		if _, err := b.fs(ctx, b.dumpArgs(a, name, false)...); err != nil {
			return err
		}
		dump := since(start)
		if err := a.gone(ctx); err != nil {
			return err
		}
		if _, err := b.fs(ctx, "restore", b.store, name, "--wait", "--criu", b.o.criu); err != nil {
			return err
		}
		if err := a.verify(ctx); err != nil {
			return err
		}
		done++
		fmt.Fprintf(b.out, "cycle %d: dump %.2f s, all with answers %.2f s\n", i+1, dump, since(start))
	}
	return nil
}

func (b *bench) fact(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	b.res.Facts = append(b.res.Facts, s)
	fmt.Fprintln(b.out, s)
}

// machine tells what all this runs on, and makes the store.
func (b *bench) machine(ctx context.Context) error {
	say := func(format string, args ...any) {
		s := strings.TrimSpace(fmt.Sprintf(format, args...))
		b.res.Machine = append(b.res.Machine, s)
		fmt.Fprintln(b.out, s)
	}
	for _, c := range [][]string{
		{"uname", "-sr"}, {"nproc"},
		{"sh", "-c",
			"grep -m1 'model name' /proc/cpuinfo; grep MemTotal /proc/meminfo; stat -f -c '/run is %T' /run; df -h " +
				b.o.work + " | tail -1"},
		{"nvidia-smi", "--query-gpu=name,driver_version,memory.total,persistence_mode", "--format=csv,noheader"},
		{b.o.criu, "--version"}, {b.gpucrfs, "version"},
		{b.o.python, "-c", "import torch; print('PyTorch', torch.__version__, torch.version.cuda)"},
	} {
		if c[0] == b.o.python && b.o.app != "torch" {
			continue
		}
		out, err := exec.CommandContext(ctx, c[0], c[1:]...).CombinedOutput()
		if err != nil {
			say("%s: %v: %s", c[0], err, out)
			continue
		}
		say("%s", out)
	}
	if b.gpu() {
		start := time.Now()
		c, err := b.driver(ctx)
		if err != nil {
			return err
		}
		say("gpucr-cuda has loaded the driver after %.3f s", since(start))
		info, err := c.Info(ctx)
		if err = errors.Join(err, c.Close()); err != nil {
			return err
		}
		say("driver %s, CUDA %d.%d, %s", info.Driver, info.CUDA/1000, info.CUDA%1000/10, info.Library)
		for _, d := range info.Devices {
			say("GPU %s %s, %d MiB", d.UUID, d.Name, d.Memory>>20)
		}
	}
	if err := os.MkdirAll(filepath.Dir(b.store), 0o700); err != nil {
		return err
	}
	_, err := b.fs(ctx, "init", b.store)
	return err
}
