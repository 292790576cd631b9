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

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/talk"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/restore"
	"github.com/gpucr/gpucr-fs/restore/oci"
)

// containerName is hidden, but started by gpucr-runc: it takes its options from the configuration.
const containerName = "container"

// containerCmd is what gpucr-runc runs for a checkpoint or restore: the command line after -- is that of an OCI
// runtime.
func (a *app) containerCmd() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:    containerName + " [-- OCI RUNTIME ARGUMENTS]",
		Short:  "checkpoint or restore a container (started by gpucr-runc)",
		Hidden: true,
		Args:   cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			a.quiet = true // the runtime prints what callers expect, and nothing else
			call := oci.Parse(args)
			err := a.container(cmd.Context(), call, file)
			if code := ended(0); err != nil && !errors.As(err, &code) {
				// podman and containerd show what is in the log, and nothing else.
				why := err.Error()
				if known := (*codeError)(nil); errors.As(err, &known) && known.hint != "" {
					why += "; " + known.hint
				}
				err = errors.Join(err, call.Log(time.Now(), "gpucr-fs: "+oneLine(why)))
			}
			return err
		},
	}
	c.Flags().StringVar(&file, "runtime-config", oci.DefaultConfig, "configuration `FILE` of gpucr-runc")
	return c
}

func (a *app) container(ctx context.Context, call oci.Call, file string) error {
	if !call.Ours() {
		return usage(errors.New("this is no checkpoint or restore of a container"), "use gpucr-runc")
	}
	c, err := newContainer(call, file)
	if err != nil {
		return err
	}
	if call.Command == oci.Checkpoint {
		return a.dumpContainer(ctx, c)
	}
	return a.restoreContainer(ctx, c)
}

func newContainer(call oci.Call, file string) (*container, error) {
	conf, err := oci.Load(file)
	if err != nil {
		return nil, err
	}
	if err := conf.NeedStore(file); err != nil {
		return nil, usage(err, "")
	}
	runtime, err := conf.FindRuntime()
	if err != nil {
		return nil, err
	}
	criu, err := criuOf(call, conf)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"image-path", "work-path"} {
		if v := call.Value(name); v != "" {
			if v, err = filepath.Abs(v); err != nil {
				return nil, err
			}
			call = call.With(name, v)
		}
	}
	return &container{call: call, conf: conf, runtime: runtime, criu: criu}, nil
}

// criuOf finds criu's program. Runtimes look for "criu" in the PATH, and so it has to be called.
func criuOf(call oci.Call, conf oci.Config) (string, error) {
	flags := criuFlags{program: conf.CRIU}
	if p := call.Global("criu"); p != "" && conf.CRIU == "" {
		flags.program = p
	}
	p, err := flags.find()
	if err != nil {
		return "", err
	}
	if filepath.Base(p) != "criu" {
		return "", usage(fmt.Errorf("criu's program is called %s; OCI runtimes look for a program called criu", p), "")
	}
	return p, nil
}

// dumpContainer checkpoints a container. Where that fails it goes on.
func (a *app) dumpContainer(ctx context.Context, c *container) (err error) {
	if c.lock, err = c.call.Lock(ctx, os.Getenv(oci.UserDirVar)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.lock.Release()) }()
	s, err := oci.Ask(c.runtime, c.call)
	if err != nil {
		return err
	}
	if s.PID <= 0 {
		return fmt.Errorf("container %s does not run: it is %s", c.call.ID, s.Status)
	}
	c.name = s.Name(time.Now())
	if c.place, err = oci.Reserve(c.call.Value("image-path"), c.name, c.call.ID); err != nil {
		return err
	}
	again, err := c.thaw(s)
	if err != nil {
		return errors.Join(err, c.place.GiveUp())
	}
	defer func() { err = errors.Join(err, again()) }()
	d := dumping{a: a, pid: s.PID, leave: c.call.Has("leave-running"), durable: c.conf.Durable, container: c}
	d.criu.program = c.criu
	d.nvidia.timeout = gpuTimeout
	err = d.run(ctx, c.conf.Store, c.name, s.Tags(), s.Labels())
	if !c.dumped {
		return errors.Join(err, c.place.GiveUp())
	}
	return a.kept(context.WithoutCancel(ctx), c, errors.Join(c.unreferred, err))
}

// kept judges an error that came when a container had been dumped. What its checkpoint can be restored by is kept: the
// container may have ended.
func (a *app) kept(ctx context.Context, c *container, err error) error {
	if err == nil {
		return nil
	}
	state, serr := a.state(ctx, c.conf.Store, c.name)
	switch {
	case serr != nil:
		return fmt.Errorf("container %s was dumped as checkpoint %s, then: %w; %w", c.call.ID, c.name, err, serr)
	case state != index.Sealed:
		return &codeError{exitError, "make room in the store if there is none, then: " + c.seal(),
			fmt.Errorf("container %s was dumped as checkpoint %s, which is not sealed: %w", c.call.ID, c.name, err)}
	case c.unreferred != nil:
		return &codeError{exitError,
			"gpucr-fs export " + c.conf.Store + " " + c.name + " DIR makes a directory that it can be restored from",
			fmt.Errorf("container %s is in the store as checkpoint %s: %w", c.call.ID, c.name, err)}
	}
	var late *codeError
	if errors.As(err, &late) && late.hint != "" {
		err = fmt.Errorf("%w; %s", err, late.hint)
	}
	a.note("%v", err) // its caller can restore it
	return nil
}

// seal is the command that seals the checkpoint of a dump that was given up too late.
func (c *container) seal() string { return "gpucr-fs seal " + c.conf.Store + " " + c.name }

// state gives the state of a checkpoint of a store by its name. Class NotFound when there is none.
func (a *app) state(ctx context.Context, store, name string) (index.State, error) {
	res, err := do(ctx, a, store, "", service.Names, service.NamesRequest{})
	if err != nil {
		return "", err
	}
	for _, c := range res.Checkpoints {
		if c.Name == name {
			return c.State, nil
		}
	}
	return "", &index.Error{Class: index.NotFound, Op: "checkpoint", Checkpoint: name,
		Err: errors.New("there is none of this name")}
}

// thaw lets a container that is paused run where CUDA processes have to give up their GPUs, which threads of the driver
// in them do. What it returns pauses the container again, for its caller to let it run.
func (c *container) thaw(s oci.State) (again func() error, err error) {
	again = func() error { return nil }
	if s.Status != "paused" {
		return again, nil
	}
	if used, err := cuda.Uses(s.PID); !used || err != nil {
		return again, err
	}
	if err := c.do("resume"); err != nil {
		return again, err
	}
	return func() error {
		if now, err := oci.Ask(c.runtime, c.call); err != nil || now.Status != "running" {
			return nil // it has ended with its checkpoint
		}
		return c.do("pause")
	}, nil
}

// onDemand refuses a runtime that cannot have memory brought on demand.
func (c *container) onDemand() error {
	help, err := exec.Command(c.runtime, oci.Restore, "--help").CombinedOutput()
	if err == nil && !strings.Contains(string(help), "--lazy-pages") {
		err = errors.New("its restore has no --lazy-pages")
	}
	if err != nil {
		return &codeError{exitError, "name runc as the runtime in the configuration of gpucr-runc",
			fmt.Errorf("%s cannot restore from a store: %w", c.runtime, err)}
	}
	return nil
}

// restoreContainer brings a container back. Its memory follows.
func (a *app) restoreContainer(ctx context.Context, c *container) (err error) {
	if c.ref, err = a.reference(ctx, c); err != nil {
		return err
	}
	if err := c.onDemand(); err != nil {
		return err
	}
	if c.lock, err = c.call.Lock(ctx, os.Getenv(oci.UserDirVar)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.lock.Release()) }()
	if err := c.vacate(); err != nil {
		return err
	}
	args := restore.Args{Work: c.call.Value("work-path")}
	if args.Work == "" {
		dir, done, err := c.workDir()
		if err != nil {
			return err
		}
		defer done()
		args.Work = dir
	}
	if err := os.MkdirAll(args.Work, 0o700); err != nil {
		return err
	}
	// A container is not restored twice but for its ports: its caller's terminal is there for one attempt.
	r := restoring{a: a, args: args, container: c, allFirst: true}
	r.criu.program = c.criu
	r.timeline.Started = time.Now()
	err = r.run(ctx, c.conf.Store, c.ref.Checkpoint, 0, false, "")
	if partly := (*codeError)(nil); r.runs && errors.As(err, &partly) && partly.code == exitPartial {
		a.note("%v; %s", err, partly.hint)
		err = nil
	}
	if err = errors.Join(err, c.lock.Release()); err != nil {
		return err
	}
	return c.foreground()
}

// vacate refuses a container that is there, and removes what a killed restore has left. That may be a container that
// has ended: nobody was told of it.
func (c *container) vacate() error {
	s, err := oci.Ask(c.runtime, c.call)
	switch {
	case err != nil && !c.lock.Complete():
		return c.lock.Clear()
	case err != nil:
		return fmt.Errorf("container %s exists already, and what it does is not known: %w", c.call.ID, err)
	case s.Status == "stopped" && c.lock.Left():
		return c.end()
	}
	return fmt.Errorf("container %s exists already, and is %s: remove it first, or restore it under another name",
		c.call.ID, s.Status)
}

// reference tells which checkpoint is restored: that of a dump that was killed when it was complete, if there is one in
// the image directory.
func (a *app) reference(ctx context.Context, c *container) (oci.Reference, error) {
	dir := c.call.Value("image-path")
	pending, err := oci.ReadPending(dir)
	if err != nil {
		return oci.ReadReference(dir)
	}
	state, err := a.state(ctx, c.conf.Store, pending.Checkpoint)
	if err == nil && state == index.Sealed {
		return pending, nil
	}
	if err != nil && index.ClassOf(err) != index.NotFound {
		return pending, err
	}
	if err == nil {
		c.name = pending.Checkpoint
		return pending, &codeError{exitError, "if its container has ended since: " + c.seal() + "; else remove " +
			filepath.Join(dir, oci.PendingFile),
			fmt.Errorf("the dump of container %s as checkpoint %s was killed, and it is not sealed",
				pending.Container, pending.Checkpoint)}
	}
	ref, err := oci.ReadReference(dir)
	if errors.Is(err, oci.ErrNoReference) {
		err = fmt.Errorf("the dump of container %s was killed before it was complete, and there is no checkpoint of "+
			"it: remove %s", pending.Container, filepath.Join(dir, oci.PendingFile))
	}
	return ref, err
}

// inContainer has the runtime restore a container, and does what has to follow before its processes may go on.
func (r *restoring) inContainer(ctx context.Context, p talk.Prepared) error {
	c := r.container
	env := r.events.env()
	note, err := readNote(p.Images)
	if err != nil {
		return err
	}
	if dir := r.plugins(p, note); dir != "" {
		env = append(env, pluginDirVar+"="+dir)
	}
	read, stop := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() { restore.Preread(read, p.Images) })
	err = c.restore(ctx, p, env)
	stop()
	reading.Wait()
	if err != nil && c.sharesPorts() {
		return r.freePorts(ctx, err, p.Images)
	}
	if err != nil {
		return err
	}
	r.pid = c.pid
	if err := r.wake(ctx, r.pid, note); err != nil {
		return errors.Join(err, c.end())
	}
	if r.gpu != nil {
		if _, err := r.resumeGPUs(ctx, r.pid, note); err != nil {
			return errors.Join(err, c.end())
		}
	}
	r.runs = true
	return nil
}

// sharesPorts tells whether a container that could not be restored has the ports of this machine, and can be tried
// again: nobody waits for its terminal.
func (c *container) sharesPorts() bool {
	if !c.call.Has("detach") || c.call.Has("console-socket") {
		return false
	}
	shared, err := oci.HostNetwork(c.call.Value("bundle"))
	return err == nil && shared
}

// plugins gives criu's folder of plugins for a restore: ours where there is something for it.
func (r *restoring) plugins(p talk.Prepared, note cudaNote) string {
	if p.AMDGPU {
		return amdgpuPlugins()
	}
	if note.Processes > 0 {
		return p.Work // criu's cuda_plugin would find nothing to do; here is none
	}
	return ""
}

// lookedFor makes the error of a reference whose checkpoint is not there say what it is.
func (c *container) lookedFor(err error) error {
	if c == nil || index.ClassOf(err) != index.NotFound {
		return err
	}
	return &codeError{exitError,
		"stores of several machines share checkpoints by a bucket (gpucr-fs init --remote), or by gpucr-fs " +
			"export and import",
		fmt.Errorf(
			"the images of container %s are checkpoint %s, which %s does not have: %w", c.ref.Container,
			c.ref.Checkpoint, c.conf.Store, err,
		)}
}
