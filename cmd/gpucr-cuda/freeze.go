package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpucr/gpucr-fs/cuda/driver"
	"github.com/gpucr/gpucr-fs/cuda/freeze"
	"github.com/gpucr/gpucr-fs/park/inject"
)

// The steps of the driver, for processes that stand still from their checkpoint to the end of their restore.

func (h *holder) checkpoint(pid int, stand bool) error {
	if !stand {
		return h.lib.Checkpoint(pid)
	}
	if freeze.Traced(pid) {
		return fmt.Errorf("process %d is being traced, and has to stand still without its GPU: end the tracer", pid)
	}
	if err := freeze.Stop(pid); err != nil {
		return errors.Join(err, freeze.Continue(pid))
	}
	var huge freeze.Calls
	if d, err := inject.NewHuge(pid); err == nil { // else the memory that VRAM goes into has small pages
		huge = d
	}
	if err := h.within(pid, huge, func() error { return h.lib.Checkpoint(pid) }); err != nil {
		return errors.Join(err, freeze.Continue(pid))
	}
	return nil
}

func (h *holder) restore(pid int, pairs []driver.Pair) error {
	stood := stands(pid)
	var left error
	if stood {
		left = freeze.Expel(pid) // a CRIU that was killed may have left them there
	}
	if h.isAwake(pid) {
		if serves, err := h.lib.RestoreThread(pid); err == nil {
			h.mu.Lock()
			h.serves[pid] = serves
			h.mu.Unlock()
		}
	}
	err := h.within(pid, nil, func() error { return h.lib.Restore(pid, pairs) })
	if err == nil && stood {
		err = freeze.Continue(pid)
	}
	if err == nil {
		err = h.asleep(pid)
	}
	return errors.Join(left, err)
}

func (h *holder) unlock(pid int) error {
	if stands(pid) {
		if err := freeze.Continue(pid); err != nil {
			return err
		}
	}
	return errors.Join(h.asleep(pid), h.lib.Unlock(pid))
}

func (h *holder) state(pid int) (s int, err error) {
	err = h.within(pid, nil, func() error {
		s, err = h.lib.State(pid)
		return err
	})
	return s, err
}

// stands tells whether a process was stopped for its checkpoint.
func stands(pid int) bool { return !freeze.Traced(pid) && freeze.Stands(pid) }

// within calls f while the driver's threads of the process run, and no others where it stands still. calls, nil for
// none, is told of their system calls.
func (h *holder) within(pid int, calls freeze.Calls, f func() error) error {
	if !stands(pid) {
		return f()
	}
	serves, err := h.lib.RestoreThread(pid)
	if err != nil {
		return err
	}
	r, err := freeze.Run(pid, calls, func(tid int, name string) bool { return driversThread(serves, tid, name) })
	if err != nil {
		return err
	}
	// A thread that stands still may have what the driver's waits for, such as a lock of the allocator. CRIU's plugin
	// lets no more of them run, so the driver should do without; but nobody is to stand for ever.
	free := time.AfterFunc(stuck, func() { _ = freeze.Continue(pid) })
	defer free.Stop()
	return errors.Join(f(), r.End())
}

// stuck is how long a step of the driver's may take: it copies some GB a second.
const stuck = 5 * time.Minute

// driversThread tells the driver's threads: the one that serves restores, and others by the names that it gives them,
// cuda-EvtHandlr, and cuda with a number of eleven hexadecimal digits. A program's own threads bear its name, which may
// begin like that.
func driversThread(serves, tid int, name string) bool {
	number, ok := strings.CutPrefix(name, "cuda")
	return tid == serves || name == "cuda-EvtHandlr" ||
		ok && len(number) == 11 && strings.Trim(number, "0123456789abcdef") == ""
}

// wake lets a process that stands still run without its GPU, until asleep.
func (h *holder) wake(pid int) error {
	if freeze.Traced(pid) || !freeze.Stopping(pid) {
		return nil
	}
	// The driver gives the memory that VRAM was in back by one call, for which it would let the process wait.
	a, err := freeze.Wake(pid, freeze.Watch{Driver: func(tid int, name string) bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return driversThread(h.serves[pid], tid, name)
	}, Calls: func() (freeze.Calls, error) { return inject.NewLater(pid) }})
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.awake[pid] = a
	return nil
}

// asleep ends what wake began: what the process waits for is there.
func (h *holder) asleep(pid int) error {
	h.mu.Lock()
	a := h.awake[pid]
	delete(h.awake, pid)
	delete(h.serves, pid)
	h.mu.Unlock()
	if a == nil {
		return nil
	}
	return a.End()
}

// isAwake tells that this program traces a process, since wake.
func (h *holder) isAwake(pid int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.awake[pid] != nil
}

// leave ends what wake began and nobody has ended.
func (h *holder) leave() error {
	var errs []error
	for _, a := range h.awake {
		errs = append(errs, a.End())
	}
	return errors.Join(errs...)
}
