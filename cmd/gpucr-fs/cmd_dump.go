package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/label"
	"github.com/gpucr/gpucr-fs/daemon/talk"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/restore"
	"github.com/gpucr/gpucr-fs/restore/pidns"
	"github.com/gpucr/gpucr-fs/restore/procfs"
)

// dumping is one run of gpucr-fs dump.
type dumping struct {
	a         *app
	criu      criuFlags
	args      restore.Args
	nvidia    nvidiaFlags
	pid       int
	leave     bool
	force     bool
	parkRings bool
	durable   bool
	container *container   // what an OCI runtime dumps; nil where this program runs criu
	gpu       *nvidia      // nil where NVIDIA GPUs are left alone
	done      bool         // CRIU has dumped
	end       func() error // gives back what was taken of them
	total     atomic.Int64 // about how many bytes CRIU will write

	useless []int // processes with devices of their parents'
	rings   []int // processes with idle io_uring rings
}

func (a *app) dumpCmd() *cobra.Command {
	d := &dumping{a: a}
	var tags, labels []string
	c := &cobra.Command{
		Use:   "dump STORE NAME -t PID [-- CRIU OPTIONS]",
		Short: "checkpoint processes straight into a store",
		Long: `Dump checkpoints process PID and its descendants with criu, straight into the store, as checkpoint
NAME. If it fails, the checkpoint is removed and the processes go on. The GPU memory of CUDA processes is moved into
their own memory first; --no-gpu leaves that to criu's cuda_plugin. Options for criu follow --, as criu itself takes
them.

Forked children of CUDA processes inherit GPU devices that they can never use and that criu does not dump. Dump makes
them close these devices, unless you give --keep-inherited.

Before dump touches the processes it looks for known problems, as gpucr-fs check --pid does. If there are any, it
shows them and refuses. --force goes on anyway. Then criu may refuse, and processes whose GPUs the driver cannot give
back are lost.`,
		Example: "  gpucr-fs dump store/ web-3 -t 4711\n" +
			"  gpucr-fs dump store/ web-4 -t 4711 --leave-running -- --tcp-established --shell-job",
		SuggestFor: []string{"checkpoint"},
		Args:       cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if args, d.args, err = criuArgs(cmd, args, usageNames(cmd.Use)); err != nil {
				return err
			}
			switch {
			case d.pid <= 0:
				return usage(errors.New("no process to dump"), "name it with -t PID")
			case d.args.Work != "":
				return usage(
					errors.New("criu's work directory is the checkpoint here"),
					"-- --log-file FILE keeps criu's log",
				)
			}
			d.leave = d.leave || d.args.LeaveRunning
			set, err := label.Parse(labels)
			if err != nil {
				return err
			}
			return d.run(cmd.Context(), args[0], args[1], tags, set)
		},
	}
	f := c.Flags()
	f.IntVarP(&d.pid, "tree", "t", 0, "`PID` of the first process")
	f.BoolVarP(&d.leave, "leave-running", "R", false, "let the processes run on after the dump")
	f.StringSliceVar(&tags, "tag", nil, "`TAG` for the checkpoint")
	f.StringArrayVar(&labels, "label", nil, "label `KEY=VALUE` for the checkpoint, may be given again")
	f.BoolVar(&d.force, "force", false, "dump in spite of problems that check --pid finds; processes may be lost")
	addParkRings(f, &d.parkRings)
	addDurable(f, &d.durable)
	d.criu.add(f)
	d.nvidia.addDump(f)
	return c
}

func (d *dumping) run(ctx context.Context, store, name string, tags []string, set map[string]string) (err error) {
	if err := d.criu.options(d.a, d.args).Validate(); err != nil {
		return err
	}
	if d.gpu, d.end, err = d.nvidia.open(); err != nil {
		return err
	}
	d.end = sync.OnceValue(d.end)
	defer func() {
		if eerr := d.end(); err == nil {
			err = eerr
		}
	}()
	dir, start, err := d.a.startDaemon(store, false)
	if err != nil {
		return err
	}
	if err := needStore(dir); err != nil {
		return err
	}
	if err := errors.Join(notInit(d.pid), mayBeDurable(dir, d.durable)); err != nil {
		return err
	}
	// This may take seconds, so it comes before the preflight looks at the processes.
	if err := d.gpu.awaitRelease(ctx, d.pid); err != nil {
		return err
	}
	if err := d.preflight(ctx); err != nil {
		return err
	}
	if err := d.a.allThere(ctx, d.pid); err != nil {
		return err
	}
	labels := label.OfProcess(d.pid)
	maps.Copy(labels, set)
	begin := time.Now()
	bar := d.a.progress("dump " + name)
	defer bar.close()
	res, err := client.DumpInto(ctx, dir, client.DumpOptions{Name: name, Tags: tags, Labels: labels, PID: d.pid,
		Start: start, Run: d.dump, Progress: func(p wire.Progress) {
			p.Total = d.total.Load()
			bar.tell(p)
		}})
	bar.close()
	if err != nil && ctx.Err() != nil {
		return d.interrupted(name)
	}
	if late := (*talk.Late)(nil); errors.As(err, &late) && res.Name != "" {
		return fmt.Errorf("process %d was dumped as %s, but then: %w", d.pid, res.Name, late.Err)
	}
	if err != nil {
		return err
	}
	took := time.Since(begin)
	late := d.a.durable(ctx, dir, res.Name, d.durable)
	return errors.Join(d.a.done(res, func(w io.Writer) {
		fmt.Fprintf(
			w, "dumped process %d as %s: %d files, %s in %v\n", d.pid, res.Name, res.Files, size(res.Logical),
			took.Round(time.Millisecond),
		)
	}), late)
}

// notInit refuses the first process of a namespace that restore --own-pids made.
func notInit(pid int) error {
	m, ok, err := pidns.Find(pid)
	if err != nil || !ok || m.Init != pid {
		return err
	}
	return usage(
		fmt.Errorf("process %d is the init of restored processes, which stays with them and is not dumped", pid),
		fmt.Sprintf("dump what was restored, its children: -t %v", procfs.Children(pid)),
	)
}

// dump runs CRIU, with the GPUs stopped around it.
func (d *dumping) dump(ctx context.Context, images string) (err error) {
	defer func() {
		if d.done && err != nil {
			err = &talk.Late{Err: err}
		}
	}()
	log, done, err := tempFile("dump.log")
	if err != nil {
		return err
	}
	defer done()
	// In a namespace that restore --own-pids made criu takes it for what it was at first: a process without one.
	pid, within := d.pid, restore.Within(nil)
	m, ok, err := pidns.Find(d.pid)
	if err != nil {
		return err
	}
	if ok {
		own, err := m.Enter()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, own.End()) }()
		pid, within = m.Inside, own
	}
	defer func() { err = errors.Join(err, d.end()) }()
	if gpu := d.gpu; gpu != nil {
		if err := d.letGo(ctx); err != nil {
			return err
		}
		gpu.runs = d.rings // their threads wait by other means, and have to run to make their rings anew
		var undo func(context.Context) error
		undo, err = gpu.Prepare(ctx, d.pid)
		defer func() {
			stays := d.args.Has("leave-stopped")
			if undo != nil && (err != nil || d.leave || stays) {
				stays = stays && err == nil
				err = errors.Join(err, undo(context.WithoutCancel(ctx)))
			}
			if gpu.over != nil {
				err = errors.Join(err, gpu.over())
			}
			if stays && undo != nil {
				err = errors.Join(err, stopTree(d.pid))
			}
		}()
		if err != nil {
			return fmt.Errorf("stop the gpus: %w", err)
		}
		// criu's cuda_plugin would find nothing to do, and ask to be there at the restore. Where the log goes there is
		// no plugin.
		if undo != nil && !d.args.Has("libdir") {
			if err := d.args.Set("libdir", filepath.Dir(log)); err != nil {
				return err
			}
		}
		if err := gpu.note(ctx, images); err != nil {
			return err
		}
	}
	if dir := amdgpuPlugins(); dir != "" && !d.args.Has("libdir") {
		if err := d.args.Set("libdir", dir); err != nil {
			return err
		}
	}
	unpark, err := d.park(images)
	defer func() { err = errors.Join(err, unpark(err != nil || d.leave)) }()
	if err != nil {
		return err
	}
	if d.container != nil {
		var env []string
		if dir := d.args.Value("libdir"); dir != "" {
			env = append(env, pluginDirVar+"="+dir)
		}
		err = d.container.dump(images, env)
		d.done = err == nil
		return err
	}
	c, err := d.criu.start(d.a, d.args, within)
	if err != nil {
		return err
	}
	d.total.Store(memoryOfTree(d.pid)) // with what was on their GPUs
	err = c.Dump(images, log, pid, d.leave)
	d.done = err == nil
	return errors.Join(err, c.Close())
}

// memoryOfTree is about how much memory criu writes for a process and its descendants.
func memoryOfTree(pid int) int64 {
	sum := procfs.Memory(pid)
	for _, child := range procfs.Children(pid) {
		sum += memoryOfTree(child)
	}
	return sum
}

// interrupted tells what a dump was given up to. What CRIU says of it is that it could not write any more.
func (d *dumping) interrupted(name string) error {
	stat, err := procfs.ReadStat(fmt.Sprintf("/proc/%d/stat", d.pid))
	if err != nil && !d.done {
		return &codeError{exitError, "gpucr-fs ls shows whether the checkpoint is complete",
			fmt.Errorf("interrupted, and process %d cannot be looked at: %w", d.pid, err)}
	}
	if d.done || procfs.Ended(stat) {
		return &codeError{exitError, "gpucr-fs ls shows whether it is complete",
			fmt.Errorf("interrupted when criu had written checkpoint %s", name)}
	}
	return &codeError{
		exitError,
		"",
		fmt.Errorf("interrupted: the dump was given up, process %d and its descendants go on", d.pid),
	}
}
