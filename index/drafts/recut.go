package drafts

import (
	"errors"
	"io"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/reading"
)

// This file cuts files of a draft where Options.Cuts says. What is in a file may be told by another one that is
// written after it, so this is done when everything is there: before the checkpoint is sealed. CRIU may have ended the
// processes by then, so this must not cost the checkpoint its room: where the disk lacks it, a file stays as it is.
//
// A chunk that no new cut divides is kept as it is. A cut changes the chunk around it and those after it, until the
// splitter cuts again where it cut before, which is mostly the end of the next chunk: a few hundred KiB a cut are
// read back and stored anew, the rest costs nothing. What the old chunks leave is garbage, as that of any
// overwritten file.

const (
	sealRoom  = 32 << 20 // bytes that cutting anew leaves free for what else a seal stores
	recutStep = 16 << 20 // bytes that are stored anew between two looks at the disk
)

// recut cuts every file at the offsets that Options.Cuts gives, where it can. Call with d.mu held.
func (d *Draft) recut() {
	if d.s.o.Cuts == nil {
		return
	}
	cuts, err := d.s.o.Cuts(d.view())
	unstored := d.unstored()
	for p, offs := range cuts {
		if n := d.nodes[p]; n != nil && n.kind == 0 {
			d.next++
			if e := n.recut(offs, d.next-1, unstored); e != nil && err == nil {
				err = d.at("cut", p, fault.Classify("cut", e))
			}
		}
	}
	if err != nil { // cuts make checkpoints smaller, not right
		d.s.o.Logger.Warn("files are cut by their content alone", "checkpoint", d.name, "error", err)
	}
}

// recut replaces the content by one that is cut at offs, too. Its segments are kept under the given number, which
// no other node may have. It leaves room for what is unstored of all files. An error leaves the content as it was.
func (n *node) recut(offs []int64, number uint32, unstored int64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.content.appendPending(); err != nil {
		return err
	}
	next, err := n.content.recut(offs, number, unstored)
	if err != nil || next == nil {
		return err
	}
	old := n.content
	n.content, n.number = next, number
	return old.s.chunks.PutLocal(old.spilled(0))
}

// recut gives a content of the same bytes, cut at offs, too; nil if it is already. Offsets within a page are left
// out: a page is never split.
func (c *content) recut(offs []int64, number uint32, unstored int64) (*content, error) {
	if err := c.quiesce(); err != nil {
		return nil, err
	}
	var cuts []int64
	for _, off := range offs {
		if start, _ := c.pageAt(off); off > 0 && off < c.done && off == start &&
			(len(cuts) == 0 || off > cuts[len(cuts)-1]) {
			cuts = append(cuts, off)
		}
	}
	if divides, err := c.divides(cuts); err != nil || !divides {
		return nil, err
	}
	next := &content{s: c.s, draft: c.draft, number: number, pins: c.pins, told: c.told, policy: c.policy, base: c.base,
		cuts: cuts, split: chunk.NewSplitter(c.s.o.Params)}
	left := 0
	err := c.copyTo(next, func(n int) error {
		if left -= n; left >= 0 {
			return nil
		}
		left += recutStep
		return errors.Join(next.settle(), c.s.chunks.Packs.Room(unstored+recutStep+sealRoom))
	})
	if err == nil {
		err = errors.Join(next.append(c.page[:c.pageLen]), next.cutLast(), next.settle())
	}
	if err != nil {
		next.discard()
		return nil, errors.Join(err, c.s.chunks.PutLocal(next.spilled(0)))
	}
	return next, nil
}

// divides says whether a chunk lies on both sides of one of the cuts.
func (c *content) divides(cuts []int64) (bool, error) {
	found := false
	for i := 0; i <= len(c.closed) && len(cuts) > 0 && !found; i++ {
		seg, err := c.segment(i)
		if err != nil {
			return false, err
		}
		if err := seg.Groups(func(g manifest.Group) error {
			found = found || g.Runs[0].Chunk != manifest.ZeroRun && g.Divided(cuts)
			return nil
		}); err != nil {
			return false, err
		}
	}
	return found, nil
}

// copyTo appends the segments of c to next, by reference where it can. take is asked before bytes are stored anew.
func (c *content) copyTo(next *content, take func(int) error) error {
	buf, err := c.s.chunks.Arena.Get(c.s.o.Params.Max)
	if err != nil {
		return err
	}
	buf = buf[:cap(buf)]
	defer c.s.chunks.Arena.Put(buf)
	var zeros int64
	for i := 0; i <= len(c.closed); i++ {
		seg, err := c.segment(i)
		if err != nil {
			return err
		}
		err = seg.Groups(func(g manifest.Group) error {
			open := g.End == c.done && c.pageLen > 0 // cut by quiesce: the bytes behind it belong to it
			if g.Whole && !open && len(next.cur) == 0 && next.pageLen == 0 && !g.Divided(next.cuts) {
				return next.adopt(seg.Chunks[g.Runs[0].Chunk], g)
			}
			for _, r := range g.Runs {
				if r.Chunk == manifest.ZeroRun {
					zeros += r.Len
					if err := next.appendZeros(r.Len); err != nil {
						return err
					}
					continue
				}
				for at := int64(0); at < r.Len; {
					p := buf[:min(int64(len(buf)), r.Len-at)]
					if err := c.s.reading.CopyChunk(seg.Chunks[r.Chunk], int64(r.Off)+at, p); err != nil {
						return err
					}
					if err := take(len(p)); err != nil {
						return err
					}
					if err := next.append(p); err != nil {
						return err
					}
					at += int64(len(p))
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	c.s.Counts.Zero.Add(-zeros) // they were counted when they came
	return nil
}

// adopt appends a whole chunk that is stored already. The draft has it pinned.
func (c *content) adopt(ref manifest.ChunkRef, g manifest.Group) error {
	ci, shift := int32(len(c.tail.Chunks)), c.done-c.tail.Start-g.Runs[0].Start
	for _, r := range g.Runs {
		if r.Chunk != manifest.ZeroRun {
			r.Chunk = ci
		}
		r.Start += shift
		c.tail.Runs = append(c.tail.Runs, r)
	}
	c.tail.Chunks = append(c.tail.Chunks, ref)
	c.inFlight = append(c.inFlight, nil)
	c.tail.Len += g.End - g.Start
	c.done += g.End - g.Start
	c.split.Reset()
	c.cutBefore = true
	c.passCuts()
	return c.spillFull()
}

// view shows the files as they are. Draft.mu is held by who calls it and uses what it gives.
func (d *Draft) view() reading.Listing {
	files := map[string]reading.FileInfo{}
	for p, n := range d.nodes {
		files[p] = n.info(p)
	}
	return reading.Listing{Files: files, Reader: func(p string) io.ReaderAt { return &draftReader{d.nodes[p]} }}
}

// draftReader reads a file that has no handle.
type draftReader struct{ n *node }

func (r *draftReader) ReadAt(p []byte, off int64) (int, error) {
	r.n.mu.Lock()
	defer r.n.mu.Unlock()
	if err := r.n.content.appendPending(); err != nil {
		return 0, err
	}
	return r.n.content.readAt(p, off)
}
