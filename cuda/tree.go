package cuda

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/cuda/freeze"
)

// Process is one that uses CUDA.
type Process struct {
	PID   int   `json:"pid"`
	State State `json:"state"`
}

// Uses reports whether a process of the tree seems to use CUDA: it has a GPU
// open or the driver's library mapped. It asks no driver.
func Uses(root int) (bool, error) {
	pids, err := Tree(root)
	if err != nil {
		return false, err
	}
	for _, pid := range pids {
		t, err := look("/proc", pid)
		if err != nil {
			return false, err
		}
		if t.devices || t.libcuda {
			return true, nil
		}
	}
	return false, nil
}

// Processes finds the CUDA processes of a tree and their states. A process that
// only has the library, and that the driver does not know, is none.
func (c *Client) Processes(ctx context.Context, root int) ([]Process, error) {
	pids, err := Tree(root)
	if err != nil {
		return nil, err
	}
	var procs []Process
	for _, pid := range pids {
		t, err := look("/proc", pid)
		if err != nil {
			return nil, err
		}
		if !t.devices && !t.libcuda {
			continue
		}
		s, err := c.State(ctx, pid)
		switch {
		case err == nil:
			procs = append(procs, Process{PID: pid, State: s})
		case CodeOf(err) == 0 || t.devices:
			return nil, err
		}
	}
	return procs, nil
}

// Suspension is the CUDA processes of a tree while their VRAM is in their memory. It ends with Undo, or when CRIU has
// dumped and ended them. If the client is closed or this process ends before that, gpucr-cuda undoes it.
type Suspension struct {
	c     *Client
	procs []Process // as they were before
	waits []int     // see others
	// LockTime and CheckpointTime are what the driver took for all of them.
	LockTime, CheckpointTime time.Duration
}

// Suspend brings all CUDA processes of a tree to Checkpointed: all are locked,
// within timeout when that is not 0, before one is checkpointed. When one
// cannot be, all are brought back to where they were. A tree without CUDA gives
// a Suspension of none.
//
// The processes stand still from then on until Undo, or a restore, has given them their GPUs back (package freeze), but
// for those in runs.
func (c *Client) Suspend(ctx context.Context, root int, timeout time.Duration, runs ...int) (*Suspension, error) {
	procs, err := c.Processes(ctx, root)
	if err != nil {
		return nil, err
	}
	for _, p := range procs {
		if p.State == Failed {
			return nil, fmt.Errorf("cuda: the driver cannot serve process %d any more: its state is failed", p.PID)
		}
		if p.State == Running && freeze.Stands(p.PID) {
			return nil, fmt.Errorf(
				"cuda: process %d is stopped, and would never end its GPU work: continue it (kill -CONT)", p.PID)
		}
	}
	s := &Suspension{c: c, procs: procs}
	if s.waits, err = others(root, procs); err != nil {
		return nil, err
	}
	began := time.Now()
	// No context from here on: a step in flight has to be waited for before it can be undone.
	err = s.each(func(p Process) error {
		if p.State != Running {
			return nil
		}
		_, err := c.call(context.Background(),
			Request{Op: string(Lock), PID: p.PID, Timeout: timeout, Guard: true, Waits: s.waits})
		return err
	})
	s.LockTime = time.Since(began)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		began = time.Now()
		err = s.each(func(p Process) error {
			if p.State == Checkpointed {
				return nil
			}
			_, err := c.call(context.Background(),
				Request{Op: string(Checkpoint), PID: p.PID, Stand: !slices.Contains(runs, p.PID)})
			return err
		})
		s.CheckpointTime = time.Since(began)
	}
	if err != nil {
		return nil, errors.Join(err, s.Undo())
	}
	return s, nil
}

// Processes lists the suspended processes, with the states they had before.
func (s *Suspension) Processes() []Process { return s.procs }

// each calls f for all processes at once.
func (s *Suspension) each(f func(Process) error) error {
	return atOnce(s.procs, f)
}

func atOnce[T any](procs []T, f func(T) error) error {
	errs := make([]error, len(procs))
	var wg sync.WaitGroup
	for i, p := range procs {
		wg.Go(func() { errs[i] = f(p) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// successors is how many further programs Undo starts when gpucr-cuda is killed.
const successors = 3

// settle is how long a step may still go on in the driver whose caller was killed.
const settle = 100 * time.Millisecond

// Undo brings every process back to the state it had before. One that is gone
// needs nothing. When gpucr-cuda is killed, before or meanwhile, another one is
// started: nobody else would give the processes their GPUs back.
func (s *Suspension) Undo() error {
	err := s.undo(s.c)
	for try := 0; hasEnded(err) && try < successors; try++ {
		c, serr := Start(s.c.o)
		if serr != nil {
			return errors.Join(err, serr)
		}
		// A step that the killed one had begun ends in its own time, and is undone then.
		for range 2 {
			time.Sleep(settle)
			err = s.undo(c)
		}
		if cerr := c.Close(); err == nil {
			err = cerr
		}
	}
	if err != nil {
		return fmt.Errorf("the GPU processes could not all be set going again: %w", err)
	}
	return nil
}

func (s *Suspension) undo(c *Client) error {
	return errors.Join(s.give(c), freeze.ContinueAll(s.waits))
}

// Over continues the processes of the tree, and its ancestors, that have stopped themselves because a child of theirs
// was stopped. Undo does so too.
func (s *Suspension) Over() error { return freeze.ContinueAll(s.waits) }

// others lists the processes of a tree, and the ancestors of its root, that do not use CUDA and are not stopped. One
// that waits for a child with WUNTRACED (su, sudo, script) may stop itself when its child is.
func others(root int, procs []Process) ([]int, error) {
	pids, err := Tree(root)
	if err != nil {
		return nil, err
	}
	for up := parent(root); up > 1; up = parent(up) {
		pids = append(pids, up)
	}
	return slices.DeleteFunc(pids, func(pid int) bool {
		return freeze.Stands(pid) || slices.ContainsFunc(procs, func(p Process) bool { return p.PID == pid })
	}), nil
}

// give gives each process its GPU back.
func (s *Suspension) give(c *Client) error {
	return s.each(func(p Process) error {
		now, err := c.State(context.Background(), p.PID)
		if err != nil {
			if _, dead := Tree(p.PID); dead != nil {
				return nil
			}
			return err
		}
		if now == Checkpointed && p.State != Checkpointed {
			if err := c.Do(context.Background(), Restore, p.PID, 0, nil); err != nil {
				return err
			}
			now = Locked
		}
		if now == Locked && p.State == Running {
			if err := c.Do(context.Background(), Unlock, p.PID, 0, nil); err != nil {
				return err
			}
			now = Running
		}
		if now == Failed {
			return fmt.Errorf("cuda: process %d has lost its GPU state: the driver calls it failed", p.PID)
		}
		return nil
	})
}

// Wake lets the restored processes of a tree run that stand still for want of their GPUs, until Resume: a thread that
// comes to memory which is not there yet waits for it. It does not wait for the driver to be loaded. others are the
// processes of the tree that do not use CUDA.
func (c *Client) Wake(ctx context.Context, root int) (others []int, err error) {
	pids, err := Tree(root)
	if err != nil {
		return nil, err
	}
	var users []int
	for _, pid := range pids {
		t, err := look("/proc", pid)
		if err != nil {
			return nil, err
		}
		if t.devices || t.libcuda {
			users = append(users, pid)
		} else {
			others = append(others, pid)
		}
	}
	return others, atOnce(users, func(pid int) error {
		_, err := c.call(ctx, Request{Op: OpWake, PID: pid})
		return err
	})
}

// Resume brings all CUDA processes of a tree to Running, at once: their VRAM is
// copied back while their memory may still be on its way. pairs, nil for none,
// says which GPU stands in for which.
func (c *Client) Resume(ctx context.Context, root int, pairs []Pair) ([]Process, error) {
	procs, err := c.Processes(ctx, root)
	if err != nil {
		return nil, err
	}
	return procs, atOnce(procs, func(p Process) error {
		switch p.State {
		case Running:
			return nil
		case Failed:
			return fmt.Errorf("cuda: process %d cannot be restored: its state is failed", p.PID)
		case Checkpointed:
			if err := c.Do(ctx, Restore, p.PID, 0, pairs); err != nil {
				return err
			}
		}
		return c.Do(ctx, Unlock, p.PID, 0, nil)
	})
}
