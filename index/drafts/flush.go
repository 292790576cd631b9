package drafts

import "github.com/gpucr/gpucr-fs/index/fault"

// Flush stores what was written to all files, their last chunks as well, and fails if there is no room for the rest:
// the last chunk of a file that ends within a page is left to Seal. It makes nothing durable. It is for a writer that
// is about to give up its own copy: CRIU ends the processes it has dumped, and what a seal cannot store then is lost.
func (d *Draft) Flush() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p, n := range d.nodes {
		if n.kind == 0 && !d.ended {
			if err := (&DraftFile{n: n, path: p}).with(false, (*content).flush); err != nil {
				return err
			}
		}
	}
	if err := fault.Classify("store chunk", d.s.chunks.Packs.Room()); err != nil {
		return &fault.Error{Class: fault.ClassOf(err), Op: "write", Checkpoint: d.name, Hint: fault.HintOf(err),
			Err: err}
	}
	return nil
}

func (c *content) flush() error {
	if c.pageLen == 0 {
		if err := c.cut(); err != nil {
			return err
		}
	}
	return c.settle()
}
