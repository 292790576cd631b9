package drafts

import "github.com/gpucr/gpucr-fs/index/fault"

// Flush stores what was written to all files, their last chunks as well, and fails if there is no room for those of
// files that end within a page, or less than 16 MiB; what Seal cuts anew may be more. It makes nothing durable. It is
// for a writer that gives up its copy: CRIU ends the processes, and what a seal cannot store then is lost.
func (d *Draft) Flush() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var left int64
	flush := func(c *content) (err error) { err = c.flush(); left += int64(len(c.cur) + c.pageLen); return err }
	for p, n := range d.nodes {
		if n.kind == 0 && !d.ended {
			if err := (&DraftFile{n: n, path: p}).with(false, flush); err != nil {
				return err
			}
		}
	}
	if err := fault.Classify("store chunk", d.s.chunks.Packs.Room(left)); err != nil {
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
