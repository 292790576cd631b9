package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/cuda"
)

// nvidiaFlags say what dump and restore do about NVIDIA GPUs.
type nvidiaFlags struct {
	cudaFlags
	off     bool
	timeout time.Duration
	devices string
}

func (f *nvidiaFlags) addDump(c *cobra.Command) {
	f.add(c)
	c.Flags().BoolVar(&f.off, "no-gpu", false, "leave NVIDIA GPUs alone, for CRIU's cuda_plugin to move their memory")
	c.Flags().DurationVar(&f.timeout, "gpu-timeout", 10*time.Second, "how long to wait for the end of GPU work before a dump fails")
}

func (f *nvidiaFlags) addRestore(c *cobra.Command) {
	f.add(c)
	c.Flags().BoolVar(&f.off, "no-gpu", false, "leave NVIDIA GPUs alone, for CRIU's cuda_plugin to move their memory")
	c.Flags().StringVar(&f.devices, "device-map", "", "restore on other NVIDIA GPUs: `OLD-UUID=NEW-UUID,...` (driver 580 or newer)")
}

// nvidia is restore.GPU for NVIDIA GPUs.
type nvidia struct {
	flags  *nvidiaFlags
	pairs  []cuda.Pair
	logger *slog.Logger

	mu   sync.Mutex
	held *cuda.Client
}

// open gives what dump and restore need for NVIDIA GPUs, nil when they are to be left alone. Close ends it.
func (f *nvidiaFlags) open(logger *slog.Logger) (*nvidia, error) {
	if f.off {
		return nil, nil
	}
	pairs, err := cuda.ParsePairs(f.devices)
	if err != nil {
		return nil, usage(err, "")
	}
	return &nvidia{flags: f, pairs: pairs, logger: logger}, nil
}

// warm loads the driver in the background where the machine has one, so that it is ready when the restored processes need it.
func (n *nvidia) warm() {
	if n != nil && n.flags.present() {
		_, _ = n.client() // asked for again, and the error told, where it is needed
	}
}

func (n *nvidia) client() (*cuda.Client, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.held == nil {
		c, err := n.flags.client(n.logger)
		if err != nil {
			return nil, err
		}
		n.held = c
	}
	return n.held, nil
}

// Close ends gpucr-cuda. What Prepare stopped and nobody undid goes on, unless CRIU has ended it.
func (n *nvidia) Close() error {
	if n == nil || n.held == nil {
		return nil
	}
	return n.held.Close()
}

// Prepare moves the VRAM of root and its descendants into their memory.
func (n *nvidia) Prepare(ctx context.Context, root int) (func(context.Context) error, error) {
	c, err := n.needed(root)
	if c == nil || err != nil {
		return nil, err
	}
	s, err := c.Suspend(ctx, root, n.flags.timeout)
	if err != nil {
		if cuda.CodeOf(err) == cuda.CodeNotReady {
			return nil, &codeError{exitError, "try again, or with a longer --gpu-timeout", err}
		}
		return nil, err
	}
	n.logger.Info("VRAM is in host memory", "processes", len(s.Processes()), "lock", s.LockTime, "checkpoint", s.CheckpointTime)
	return func(context.Context) error { return s.Undo() }, nil
}

// Resume moves the VRAM of root and its descendants back.
func (n *nvidia) Resume(ctx context.Context, root int) error {
	c, err := n.needed(root)
	if c == nil || err != nil {
		return err
	}
	procs, err := c.Resume(ctx, root, n.pairs)
	if err == nil && len(procs) > 0 {
		n.logger.Info("VRAM is back on the GPUs", "processes", len(procs))
	}
	return err
}

// needed gives the client when a process of the tree uses CUDA, nil when none does.
func (n *nvidia) needed(root int) (*cuda.Client, error) {
	used, err := cuda.Uses(root)
	if err != nil || !used {
		return nil, err
	}
	c, err := n.client()
	if errors.Is(err, cuda.ErrNoDriver) {
		return nil, fmt.Errorf("process %d or a descendant uses CUDA: %w", root, err)
	}
	return c, err
}
