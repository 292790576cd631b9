package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/daemon/check"
)

// cudaToolName is NVIDIA's tool. A link of that name to this program behaves like it, for CRIU's cuda_plugin.
const cudaToolName = "cuda-checkpoint"

// toolArgs gives the arguments of this program: those of the command that it was called by the name of, or its own.
func toolArgs(argv []string) []string {
	if name := filepath.Base(argv[0]); name == cudaToolName || name == mountHelperName {
		return append([]string{name}, argv[1:]...)
	}
	return argv[1:]
}

// cudaFlags say how to reach NVIDIA's driver.
type cudaFlags struct {
	libcuda string
}

func (f *cudaFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&f.libcuda, "libcuda", "", "`FILE` of NVIDIA's libcuda.so.1 (default: where the loader finds it)")
}

// present tells whether there is a driver to speak with. It loads nothing.
func (f *cudaFlags) present() bool { return f.libcuda != "" || cuda.Present() }

// client starts gpucr-cuda, which lies beside this program or in the PATH.
func (f *cudaFlags) client(logger *slog.Logger) (*cuda.Client, error) {
	if !f.present() {
		return nil, cuda.ErrNoDriver
	}
	program, err := besideOrPath("gpucr-cuda")
	if err != nil {
		return nil, &codeError{exitError, "install gpucr-cuda beside gpucr-fs; make build builds both", err}
	}
	return cuda.Start(cuda.Options{Program: program, Library: f.libcuda, Logger: logger})
}

// describe tells what the driver says of this machine, nil without one.
func (f *cudaFlags) describe(ctx context.Context) *check.NVIDIA {
	if !f.present() {
		return nil
	}
	c, err := f.client(slog.New(slog.DiscardHandler))
	if err != nil {
		return &check.NVIDIA{Problem: err.Error()}
	}
	info, err := c.Info(ctx)
	if err = errors.Join(err, c.Close()); err != nil {
		return &check.NVIDIA{Problem: err.Error()}
	}
	n := &check.NVIDIA{Driver: info.Driver, CUDA: info.CUDA}
	for _, d := range info.Devices {
		n.GPUs = append(n.GPUs, check.NVIDIAGPU{UUID: d.UUID.String(), Name: d.Name, Memory: d.Memory})
	}
	return n
}

type cudaToolFlags struct {
	cudaFlags
	pid                   int
	action, devices       string
	timeout               uint32
	state, toggle, thread bool
}

func (a *app) cudaCheckpointCmd() *cobra.Command {
	var f cudaToolFlags
	c := &cobra.Command{
		Use:   "cuda-checkpoint {--get-state | --action ACTION | --toggle | --get-restore-tid} --pid PID",
		Short: "move a process's NVIDIA GPU memory to the host and back",
		Long: `Cuda-checkpoint changes or shows the GPU state of one process. Its flags and output are those of
NVIDIA's tool of the same name. A link to gpucr-fs with the name cuda-checkpoint can replace that tool, also for
CRIU's cuda_plugin. gpucr-fs dump and restore need neither.

--get-state prints running, locked, checkpointed or failed. --action takes lock, checkpoint, restore or unlock.
--toggle goes from running to checkpointed or back. --get-restore-tid prints the thread that serves the driver in
the process.`,
		Example: "  gpucr-fs cuda-checkpoint --action lock --pid 4711 --timeout 10000\n" +
			"  gpucr-fs cuda-checkpoint --action checkpoint --pid 4711",
		Args: positional,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd, a)
		},
	}
	fl := c.Flags()
	fl.IntVarP(&f.pid, "pid", "p", 0, "the process")
	fl.StringVar(&f.action, "action", "", "lock, checkpoint, restore or unlock")
	fl.BoolVar(&f.state, "get-state", false, "print the process's state")
	fl.BoolVar(&f.toggle, "toggle", false, "go from running to checkpointed or back")
	fl.BoolVar(&f.thread, "get-restore-tid", false, "print the id of the process's restore thread")
	fl.Uint32VarP(
		&f.timeout, "timeout", "t", 0,
		"`MS` to wait for the process's GPU work when it is locked (default: as long as it takes)",
	)
	fl.StringVarP(
		&f.devices, "device-map", "d", "", "restore on other GPUs: `OLD-UUID=NEW-UUID,...` (driver 580 or newer)",
	)
	f.add(fl)
	return c
}

func (f *cudaToolFlags) run(cmd *cobra.Command, a *app) error {
	asked := 0
	for _, b := range []bool{f.state, f.toggle, f.thread, f.action != ""} {
		if b {
			asked++
		}
	}
	if asked != 1 {
		return usage(
			errors.New("name one operation"),
			"--get-state, --action, --toggle and --get-restore-tid are those",
		)
	}
	if f.pid <= 0 {
		return usage(errors.New("no process was named"), "add --pid PID")
	}
	var action cuda.Action
	if f.action != "" {
		var err error
		if action, err = cuda.ParseAction(f.action); err != nil {
			return usage(err, "")
		}
	}
	pairs, err := cuda.ParsePairs(f.devices)
	if err != nil {
		return usage(err, "")
	}
	c, err := f.client(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	// An action is not broken off: the driver would finish it anyway.
	return errors.Join(f.step(context.WithoutCancel(cmd.Context()), a, c, action, pairs), c.Close())
}

func (f *cudaToolFlags) step(ctx context.Context, a *app, c *cuda.Client, action cuda.Action, pairs []cuda.Pair) error {
	timeout := time.Duration(f.timeout) * time.Millisecond
	switch {
	case f.state:
		s, err := c.State(ctx, f.pid)
		if err == nil {
			_, err = fmt.Fprintln(a.out, s)
		}
		return err
	case f.thread:
		tid, err := c.RestoreThread(ctx, f.pid)
		if err == nil {
			_, err = fmt.Fprintln(a.out, strconv.Itoa(tid))
		}
		return err
	case f.toggle:
		return toggle(ctx, c, f.pid, timeout, pairs)
	}
	return c.Do(ctx, action, f.pid, timeout, pairs)
}

// toggle takes a process from running to checkpointed, or from checkpointed to running.
func toggle(ctx context.Context, c *cuda.Client, pid int, timeout time.Duration, pairs []cuda.Pair) error {
	s, err := c.State(ctx, pid)
	if err != nil {
		return err
	}
	steps := map[cuda.State][2]cuda.Action{cuda.Running: {cuda.Lock, cuda.Checkpoint},
		cuda.Checkpointed: {cuda.Restore, cuda.Unlock}}[s]
	if steps[0] == "" {
		return fmt.Errorf("process %d is %v: only a running or a checkpointed one can be toggled", pid, s)
	}
	if err := c.Do(ctx, steps[0], pid, timeout, pairs); err != nil {
		return err
	}
	if err := c.Do(ctx, steps[1], pid, 0, nil); err != nil {
		if s == cuda.Running {
			err = errors.Join(err, c.Do(ctx, cuda.Unlock, pid, 0, nil))
		}
		return err
	}
	return nil
}

// besideOrPath finds a program of ours: beside this one, or in the PATH.
func besideOrPath(name string) (string, error) {
	if self, err := os.Executable(); err == nil {
		if p, err := exec.LookPath(filepath.Join(filepath.Dir(self), name)); err == nil {
			return p, nil
		}
	}
	return exec.LookPath(name)
}
