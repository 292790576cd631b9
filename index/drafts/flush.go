package drafts

import (
	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
)

// Flush stores what was written to all files durably, their last chunks as well, and fails if there is no room for
// those of files that end within a page, or less than 16 MiB. It is for a writer that gives up its copy: CRIU ends the
// processes, and what a seal cannot store then is lost.
func (d *Draft) Flush() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return nil
	}
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
	if err := d.s.chunks.Commit(nil); err != nil {
		return d.at("write", "", err)
	}
	if _, err := d.stillStored(); err != nil {
		return err
	}
	if err := d.s.chunks.Packs.Room(d.unstored()); err != nil {
		return d.at("write", "", fault.Classify("store chunk", err))
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

// unstored is how many bytes a seal still stores, about, and not less.
func (d *Draft) unstored() (sum int64) {
	records := int64(0) // bytes of entries and segments, about
	for p, n := range d.nodes {
		records += int64(256 + len(p) + len(n.target))
		n.mu.Lock()
		if c := n.content; c != nil {
			last := len(c.cur) + c.pageLen + len(c.pending)
			if c.done == 0 && last < chunk.PageSize {
				records += int64(last)
			} else { // a slot in a pack is of whole pages, and a reader may have cut the last chunk in two
				sum += int64(last+2*chunk.PageSize) &^ (chunk.PageSize - 1)
			}
			records += segmentLen(&c.tail)
			for _, seg := range c.closed {
				if records += seg.size; seg.edits != nil {
					records += segmentLen(seg.edits)
				}
			}
		}
		n.mu.Unlock()
	}
	return sum + 4*records // they go to a journal, and to the index more than once
}

// segmentLen is how many bytes a segment takes when it is encoded, at most, about.
func segmentLen(m *manifest.Segment) int64 { return int64(48*len(m.Chunks) + 8*len(m.Runs)) }
