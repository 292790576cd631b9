package drafts

import (
	"errors"
	"io"
	"slices"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/manifest"
)

// This file is the part of content that goes back: reading, overwriting and truncating what was written. CRIU does
// none of it; runc, tar and stdio may.

// quiesce makes the segments readable: the chunk being built is cut, all are stored.
func (c *content) quiesce() error {
	if err := c.cut(); err != nil {
		return err
	}
	return c.settle()
}

// segment gives segment i, the tail being the last, decoded.
func (c *content) segment(i int) (*manifest.Segment, error) {
	if i == len(c.closed) {
		return &c.tail, nil
	}
	if m := c.closed[i].edits; m != nil {
		return m, nil
	}
	b, err := c.encoded(c.closed[i])
	if err != nil {
		return nil, err
	}
	return manifest.DecodeSegment(b)
}

// segmentAt gives the index of the segment that holds off < done.
func (c *content) segmentAt(off int64) int {
	i, _ := slices.BinarySearchFunc(c.closed, off, func(s *draftSegment, off int64) int {
		if s.start+s.len <= off {
			return -1
		}
		return 1
	})
	return i
}

// readAt reads as io.ReaderAt.
func (c *content) readAt(p []byte, off int64) (int, error) {
	if off >= c.size() {
		return 0, io.EOF
	}
	want := len(p)
	p = p[:min(int64(len(p)), c.size()-off)]
	n := len(p)
	if off < c.done {
		if err := c.quiesce(); err != nil {
			return 0, err
		}
	}
	for len(p) > 0 && off < c.done {
		seg, err := c.segment(c.segmentAt(off))
		if err != nil {
			return 0, err
		}
		k := min(int64(len(p)), seg.Start+seg.Len-off)
		if err := c.readSegment(seg, off-seg.Start, p[:k]); err != nil {
			return 0, err
		}
		p, off = p[k:], off+k
	}
	copy(p, c.page[max(off-c.done, 0):c.pageLen])
	if n < want {
		return n, io.EOF
	}
	return n, nil
}

func (c *content) readSegment(seg *manifest.Segment, off int64, p []byte) error {
	for i := seg.Find(off); len(p) > 0; i++ {
		r := seg.Runs[i]
		k := min(int64(len(p)), r.Start+r.Len-off)
		if r.Chunk == manifest.ZeroRun {
			clear(p[:k])
		} else if err := c.s.reading.CopyChunk(seg.Chunks[r.Chunk], int64(r.Off)+off-r.Start, p[:k]); err != nil {
			return err
		}
		p, off = p[k:], off+k
	}
	return nil
}

// writeAt writes p at off, which may be anywhere.
func (c *content) writeAt(p []byte, off int64) error {
	if off > c.size() {
		if err := c.appendZeros(off - c.size()); err != nil {
			return err
		}
	}
	for len(p) > 0 && off < c.done {
		k := min(int64(len(p)), c.done-off, int64(c.s.o.Params.Max))
		if err := c.patch(p[:k], off); err != nil {
			return err
		}
		p, off = p[k:], off+k
	}
	if back := int(off - c.done); len(p) > 0 && back < c.pageLen {
		k := copy(c.page[back:c.pageLen], p)
		p = p[k:]
	}
	return c.append(p)
}

// patch overwrites [off, off+len(p)), which lies below done, by storing the pages it touches anew.
func (c *content) patch(p []byte, off int64) error {
	if err := c.quiesce(); err != nil {
		return err
	}
	for len(p) > 0 {
		i := c.segmentAt(off)
		seg, err := c.segment(i)
		if err != nil {
			return err
		}
		k := min(int64(len(p)), seg.Start+seg.Len-off)
		a, _ := c.pageAt(off)
		_, b := c.pageAt(off + k - 1)
		a, b = max(a, seg.Start), min(b, seg.Start+seg.Len)
		buf := make([]byte, b-a)
		if err := c.readSegment(seg, a-seg.Start, buf); err != nil {
			return err
		}
		copy(buf[off-a:], p[:k])
		if err := c.replace(i, seg, a-seg.Start, buf); err != nil {
			return err
		}
		p, off = p[k:], off+k
	}
	return nil
}

// replace stores buf and puts it in place of the same stretch of segment i.
func (c *content) replace(i int, seg *manifest.Segment, rel int64, buf []byte) error {
	var runs []manifest.Run
	var inFlight []*chunks.Pending
	for pos := 0; pos < len(buf); {
		zero := chunk.IsZero(buf[pos:min(pos+chunk.PageSize, len(buf))])
		end := pos
		for end < len(buf) && end-pos < c.s.o.Params.Max &&
			chunk.IsZero(buf[end:min(end+chunk.PageSize, len(buf))]) == zero {
			end = min(end+chunk.PageSize, len(buf))
		}
		run := manifest.Run{Start: rel + int64(pos), Len: int64(end - pos), Chunk: manifest.ZeroRun}
		if !zero {
			b, err := c.s.chunks.Arena.Get(end - pos)
			if err != nil {
				return err
			}
			run.Chunk = int32(len(seg.Chunks) + len(inFlight))
			inFlight = append(inFlight, c.s.chunks.Submit(append(b, buf[pos:end]...), c.policy, c.pins))
		}
		runs = append(runs, run)
		pos = end
	}
	var errs []error
	for _, f := range inFlight {
		<-f.Done
		errs = append(errs, f.Err)
		seg.Chunks = append(seg.Chunks, f.Ref)
	}
	if err := errors.Join(errs...); err != nil {
		seg.Chunks = seg.Chunks[:len(seg.Chunks)-len(inFlight)]
		return err
	}
	return c.put(i, seg, rel, runs)
}

const (
	// slack is how many chunks a segment may have more than it uses, or than it may keep. It lets an overwrite cost as
	// much as the runs it changes: a walk over a whole segment comes once in so many.
	slack = manifest.MaxChunks / 8
	// maxEdits is how many chunks and runs of closed segments a file keeps decoded while it is being overwritten,
	// about 5 MB. Encoding and storing a segment for each overwrite took 3 ms: 60 s for 20,000.
	maxEdits = 1 << 17
)

// put puts runs, which follow each other from rel on, in place of what segment i has there. Chunks that no run uses
// any more go after a while, and a segment that has grown too large is split: however often a place is overwritten,
// what the reader allows is kept to.
func (c *content) put(i int, seg *manifest.Segment, rel int64, runs []manifest.Run) error {
	seg.Put(rel, runs)
	full := false
	if len(seg.Chunks) > manifest.MaxChunks+slack || len(seg.Runs) > manifest.MaxRuns {
		seg.DropUnused()
		full = len(seg.Chunks) > manifest.MaxChunks || len(seg.Runs) > manifest.MaxRuns
	}
	if i == len(c.closed) {
		// quiesce has settled the others
		c.inFlight = append(c.inFlight,
			make([]*chunks.Pending, max(len(seg.Chunks)-len(c.inFlight), 0))...)[:len(seg.Chunks)]
		if full {
			return c.spillFull()
		}
		return nil
	}
	old := c.closed[i]
	c.edited = append(c.dropEdited(old), old)
	old.edits = seg
	if full {
		return c.closeEdits(old)
	}
	return c.closeEdited(maxEdits)
}

// dropEdited gives the segments with edits without one.
func (c *content) dropEdited(seg *draftSegment) []*draftSegment {
	return slices.DeleteFunc(c.edited, func(s *draftSegment) bool { return s == seg })
}

// closeEdited encodes segments with edits until what is left has no more than limit chunks and runs. Those that were
// overwritten last stay.
func (c *content) closeEdited(limit int) error {
	size := 0
	for _, seg := range c.edited {
		size += len(seg.edits.Chunks) + len(seg.edits.Runs)
	}
	for len(c.edited) > 0 && size > limit {
		seg := c.edited[0]
		size -= len(seg.edits.Chunks) + len(seg.edits.Runs)
		if err := c.closeEdits(seg); err != nil {
			return err
		}
	}
	return nil
}

// closeEdits encodes a segment as overwriting has left it: in several parts if it has grown too large.
func (c *content) closeEdits(old *draftSegment) error {
	old.edits.DropUnused()
	parts, err := closeParts(old.edits)
	if err != nil {
		return err
	}
	c.zero -= old.zero
	for _, part := range parts {
		c.zero += part.zero
	}
	i := slices.Index(c.closed, old)
	c.closed = slices.Replace(c.closed, i, i+1, parts...)
	c.edited = c.dropEdited(old)
	if old.encoded == nil {
		return c.spill()
	}
	return nil
}

// punch zeroes [off, end), which lies within the file. Whole pages of segments become a run each, whatever their
// number.
func (c *content) punch(off, end int64) error {
	if err := c.quiesce(); err != nil {
		return err
	}
	last, _ := c.pageAt(end)
	for off < end {
		start, next := c.pageAt(off)
		if off > start || next > end || next > c.done {
			// A part of a page, or of what is no page yet.
			n := min(next, end) - off
			if err := c.writeAt(make([]byte, n), off); err != nil {
				return err
			}
			off += n
			continue
		}
		i := c.segmentAt(off)
		seg, err := c.segment(i)
		if err != nil {
			return err
		}
		n := min(last, seg.Start+seg.Len) - off
		run := manifest.Run{Start: off - seg.Start, Len: n, Chunk: manifest.ZeroRun}
		if err := c.put(i, seg, run.Start, []manifest.Run{run}); err != nil {
			return err
		}
		off += n
	}
	return nil
}

// truncate sets the size.
func (c *content) truncate(size int64) error {
	switch {
	case size >= c.size():
		return c.appendZeros(size - c.size())
	case size >= c.done:
		c.pageLen = int(size - c.done)
		return nil
	}
	if err := c.quiesce(); err != nil {
		return err
	}
	start, _ := c.pageAt(size)
	keep := make([]byte, size-start)
	if _, err := c.readAt(keep, start); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	i := c.segmentAt(start)
	seg, err := c.segment(i)
	if err != nil {
		return err
	}
	tail := *seg
	tail.Runs = manifest.Splice(seg.Runs, start-seg.Start, 1<<62, nil)
	tail.Len = start - seg.Start
	if err := c.dropClosed(i); err != nil {
		return err
	}
	tail.DropUnused()
	c.tail, c.inFlight = tail, make([]*chunks.Pending, len(tail.Chunks))
	c.done = start
	c.pageLen = copy(c.page[:], keep)
	c.split.Reset()
	return nil
}

// dropClosed gives up the closed segments from i on.
func (c *content) dropClosed(i int) error {
	if i >= len(c.closed) {
		return nil
	}
	if err := c.s.chunks.PutLocal(c.spilled(i)); err != nil {
		return err
	}
	for _, old := range c.closed[i:] {
		c.zero -= old.zero
		c.edited = c.dropEdited(old)
	}
	c.closed = c.closed[:i]
	return nil
}

// spilled gives what removes the closed segments from i on that are in Badger.
func (c *content) spilled(i int) (gone []chunks.Put) {
	for _, old := range c.closed[i:] {
		if old.encoded == nil {
			gone = append(gone, chunks.Put{Key: c.key(old)})
		}
	}
	return gone
}

// clear makes the file empty, whatever could not be stored.
func (c *content) clear() error {
	if err := c.dropClosed(0); err != nil {
		return err
	}
	c.discard()
	c.broken, c.tail, c.inFlight, c.cutBefore, c.done, c.pageLen = nil, manifest.Segment{}, nil, false, 0, 0
	c.split.Reset()
	return nil
}
