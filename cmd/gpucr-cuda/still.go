package main

import (
	"errors"
	"strings"

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/cuda/driver"
	"github.com/gpucr/gpucr-fs/cuda/still"
)

// The steps of the driver, for processes that stand still from their checkpoint to the end of their restore. All else
// is left to the driver.

func (h *holder) checkpoint(pid int) error {
	asks, err := cuda.Asks(pid)
	if err != nil || !asks || still.Traced(pid) {
		return errors.Join(err, h.lib.Checkpoint(pid))
	}
	if err := still.Stop(pid); err != nil {
		return errors.Join(err, still.Continue(pid))
	}
	if err := h.within(pid, func() error { return h.lib.Checkpoint(pid) }); err != nil {
		return errors.Join(err, still.Continue(pid))
	}
	return nil
}

func (h *holder) restore(pid int, pairs []driver.Pair) error {
	stands := h.stands(pid)
	err := h.within(pid, func() error { return h.lib.Restore(pid, pairs) })
	if err == nil && stands {
		err = still.Continue(pid)
	}
	return err
}

func (h *holder) unlock(pid int) error {
	if h.stands(pid) {
		if err := still.Continue(pid); err != nil {
			return err
		}
	}
	return h.lib.Unlock(pid)
}

func (h *holder) state(pid int) (s int, err error) {
	err = h.within(pid, func() error {
		s, err = h.lib.State(pid)
		return err
	})
	return s, err
}

// stands tells whether a process was stopped for its checkpoint.
func (h *holder) stands(pid int) bool {
	asks, err := cuda.Asks(pid)
	return err == nil && asks && !still.Traced(pid) && still.Stands(pid)
}

// within calls f while the driver's threads of the process run, and no others.
func (h *holder) within(pid int, f func() error) error {
	if !h.stands(pid) {
		return f()
	}
	serves, err := h.lib.RestoreThread(pid)
	if err != nil {
		return err
	}
	r, err := still.Run(pid, func(tid int, name string) bool { return tid == serves || driversThread(name) })
	if err != nil {
		return err
	}
	return errors.Join(f(), r.End())
}

// driversThread tells the driver's threads, by the names that it gives them: cuda-EvtHandlr, cuda00001400006.
func driversThread(name string) bool { return strings.HasPrefix(name, "cuda") }
