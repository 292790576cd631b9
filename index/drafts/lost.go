package drafts

import (
	"errors"
	"fmt"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
)

// stillStored fails if chunks have been lost since the draft began and it refers to one. It gives how many losses
// it has seen. Call with d.mu held.
func (d *Draft) stillStored() (losses int, err error) {
	s := d.s
	losses, cause := s.chunks.LossesNow()
	if losses == d.losses {
		return losses, nil
	}
	for p, n := range d.nodes {
		if err := d.nodeStored(n); err != nil {
			return losses, &fault.Error{Op: "store chunk", Checkpoint: d.name, File: p,
				Hint: "look into the kernel's log, then dump again",
				Err:  fmt.Errorf("the disk did not keep what was written of it (%w): %w", cause, err)}
		}
	}
	return losses, nil
}

func (d *Draft) nodeStored(n *node) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.content
	for i := 0; c != nil && i <= len(c.closed); i++ {
		m, err := c.segment(i)
		if err != nil {
			return err
		}
		for k, ref := range m.Chunks {
			if i == len(c.closed) && c.inFlight[k] != nil {
				continue
			}
			if _, err := d.s.chunks.LocateHere(ref.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// commitRoot commits the last keys of a draft, its root among them, unless a chunk that it refers to has been lost.
func (d *Draft) commitRoot(puts []chunks.Put) error {
	s := d.s
	for {
		seen, err := d.stillStored()
		if err != nil {
			return err
		}
		err = s.chunks.CommitIf(puts, func() error {
			if now, _ := s.chunks.LossesNow(); now != seen {
				return errLostMore
			}
			return nil
		})
		if !errors.Is(err, errLostMore) {
			return err
		}
	}
}

var errLostMore = errors.New("more was lost meanwhile")
