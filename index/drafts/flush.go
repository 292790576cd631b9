package drafts

import "github.com/gpucr/gpucr-fs/index/fault"

// Flush stores what was written to all files, their last chunks as well, and fails if there is no room for those of
// files that end within a page, or less than 16 MiB. It makes nothing durable. It is for a writer that gives up its
// copy: CRIU ends the processes, and what a seal cannot store then is lost.
func (d *Draft) Flush() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ended {
		// All are cut before the first is waited for: so the workers store the last chunks of many files at once.
		for _, each := range []func(*content) error{(*content).cutLast, (*content).settle} {
			for p, n := range d.nodes {
				if n.kind == 0 {
					if err := (&DraftFile{n: n, path: p}).with(false, each); err != nil {
						return err
					}
				}
			}
		}
	}
	if err := fault.Classify("store chunk", d.s.chunks.Packs.Room(d.unstored())); err != nil {
		return d.at("write", "", err)
	}
	return nil
}

// cutLast ends the chunk being built, unless the file ends within a page: what is added to that is of the same chunk.
func (c *content) cutLast() error {
	if c.pageLen > 0 {
		return nil
	}
	return c.cut()
}

// unstored is how many bytes of all files are in no chunk yet.
func (d *Draft) unstored() (sum int64) {
	for _, n := range d.nodes {
		n.mu.Lock()
		if c := n.content; c != nil {
			sum += int64(len(c.cur) + c.pageLen + len(c.pending))
		}
		n.mu.Unlock()
	}
	return sum
}
