package restores

import (
	"io"
	"log/slog"
	"sync"
)

// Driver keeps NVIDIA's driver loaded for the next restore of processes that use CUDA, in a daemon that stays and has
// restored some. Whoever loads it first has each GPU made ready, which takes 0.2 s for each. Beside somebody who has it
// loaded it takes 45 ms for all.
type Driver struct {
	load func() (io.Closer, error)
	log  *slog.Logger

	mu     sync.Mutex
	loaded io.Closer // nil before Keep, and where that failed
	closed bool
}

// NewDriver gives one that load loads; load may be nil.
func NewDriver(load func() (io.Closer, error), log *slog.Logger) *Driver {
	return &Driver{load: load, log: log, closed: load == nil}
}

// keep loads it, once. Restores do without where that fails.
func (d *Driver) keep() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.loaded != nil {
		return
	}
	l, err := d.load()
	if err != nil {
		d.log.Info("NVIDIA's driver is not kept loaded", "error", err)
		d.closed = true
		return
	}
	d.loaded = l
}

// Close ends it, and keep loads no more.
func (d *Driver) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.loaded != nil {
		_ = d.loaded.Close() // it was asked for nothing
		d.loaded = nil
	}
}
