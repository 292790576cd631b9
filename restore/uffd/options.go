package uffd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/gpucr/gpucr-fs/prefetch"
)

// SocketName is the name of the socket in CRIU's work directory.
const SocketName = "lazy-pages.socket"

// Supplier brings the contents of the plan's files to a Server: it calls the
// server's Fill, Zero, Fail and AlreadyDelivered. prefetch.Queue is one.
type Supplier interface {
	// Demand asks for what a thread waits for. It must not block. When the
	// range has been delivered before, AlreadyDelivered is called, unless again is set.
	Demand(r prefetch.Range, again bool)
	// Sweep asks for everything in the ranges, in the background.
	Sweep([]prefetch.Range)
	// Refetch is like Sweep for what has been delivered before.
	Refetch([]prefetch.Range)
	// Drain waits until everything asked for has been delivered.
	Drain(context.Context) error
}

// Options say how to serve one restore.
type Options struct {
	// Dir is CRIU's work directory, where the socket goes.
	Dir    string
	Plan   *Plan
	Logger *slog.Logger
}

// Validate checks the options.
func (o *Options) Validate() error {
	switch {
	case o.Logger == nil:
		return errors.New("uffd: options lack a logger")
	case o.Plan == nil:
		return errors.New("uffd: options lack a plan")
	case o.Dir == "":
		return errors.New("uffd: options lack a directory for the socket")
	}
	if err := o.Plan.Validate(); err != nil {
		return fmt.Errorf("uffd: %w", err)
	}
	dir, err := filepath.Abs(o.Dir)
	o.Dir = dir
	return err
}
