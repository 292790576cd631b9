package drafts

import (
	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/unsealed"
)

// content is the bytes of one file of a draft. Its owner (node) serialises all calls.
//
// The file is [0, done) in segments plus page[:pageLen]: bytes that do not fill a page yet. The segments are the
// closed ones and the tail, which grows; the data of the tail's last chunk is still in cur. Pages begin at base and
// every 4 KiB after it: the raw pages of an amdgpu image follow an 8-byte header. A write may be pending behind all
// this; see behind.go.
type content struct {
	s      *Writer
	draft  string // id of the checkpoint
	number uint32
	pins   *chunks.Pins
	told   *unsealed.Draft
	policy chunk.Policy
	base   int64
	cuts   []int64 // where else a chunk ends, ascending; those passed are gone
	split  *chunk.Splitter

	closed    []*draftSegment
	edited    []*draftSegment // of closed, those with edits: the one overwritten last is the last
	tail      manifest.Segment
	inFlight  []*chunks.Pending // parallel to tail.Chunks; nil where the chunk is settled
	cur       []byte            // from the arena
	cutBefore bool              // a chunk was cut before: the next will be of full size, too
	done      int64
	page      [chunk.PageSize]byte
	pageLen   int
	zero      int64  // bytes of zero runs in closed
	pending   []byte // a write that was answered before it is appended, from the arena
	broken    error  // such a write could not be appended
}

// draftSegment is a closed segment: in Badger under its key, or in encoded until it is committed.
type draftSegment struct {
	start, len, zero, size int64 // in bytes of the file, but size: those of its record
	encoded                []byte
	sum                    uint32            // of its record: the index may show an older one
	edits                  *manifest.Segment // what overwriting has made of it since; some chunks may be unused
}

func newContent(d *Draft, number uint32, base int64) *content {
	s := d.s
	return &content{s: s, draft: d.id, number: number, pins: d.pins, told: d.told, policy: d.policy, base: base,
		split: chunk.NewSplitter(s.o.Params)}
}

func (c *content) size() int64 { return c.done + int64(c.pageLen) + int64(len(c.pending)) }

// pageAt gives where the page that holds off begins, and where it ends.
func (c *content) pageAt(off int64) (start, end int64) {
	if off < c.base {
		return 0, c.base
	}
	start = c.base + (off-c.base)&^(chunk.PageSize-1)
	return start, start + chunk.PageSize
}

// append adds p at the end.
func (c *content) append(p []byte) error {
	for len(p) > 0 {
		start, end := c.pageAt(c.done)
		want := int(end - start)
		if c.pageLen == 0 && len(p) >= want {
			if err := c.add(p[:want]); err != nil {
				return err
			}
			p = p[want:]
			continue
		}
		n := copy(c.page[c.pageLen:want], p)
		c.pageLen += n
		p = p[n:]
		if c.pageLen == want {
			if err := c.addPage(); err != nil {
				return err
			}
		}
	}
	return nil
}

// appendZeros adds n zero bytes at the end without touching each of them.
func (c *content) appendZeros(n int64) error {
	if start, end := c.pageAt(c.done); c.pageLen > 0 || start < c.base {
		fill := min(n, end-start-int64(c.pageLen))
		if err := c.append(make([]byte, fill)); err != nil {
			return err
		}
		n -= fill
	}
	if whole := n &^ (chunk.PageSize - 1); whole > 0 {
		if err := c.addZeros(whole); err != nil {
			return err
		}
		n -= whole
	}
	return c.append(make([]byte, n))
}

// add adds one page, or what the file ends with.
func (c *content) add(page []byte) error {
	if chunk.IsZero(page) {
		return c.addZeros(int64(len(page)))
	}
	if err := c.room(len(page)); err != nil {
		return err
	}
	ci, off, n := int32(len(c.tail.Chunks)), uint32(len(c.cur)), int64(len(page))
	if k := len(c.tail.Runs) - 1; k >= 0 && c.tail.Runs[k].Chunk == ci &&
		int64(c.tail.Runs[k].Off)+c.tail.Runs[k].Len == int64(off) {
		c.tail.Runs[k].Len += n
	} else {
		c.tail.Runs = append(c.tail.Runs, manifest.Run{Start: c.tail.Len, Len: n, Chunk: ci, Off: off})
	}
	c.cur = append(c.cur, page...)
	c.tail.Len += n
	c.done += n
	reached := c.passCuts()
	if c.split.Data(page) || c.done == c.base || reached {
		return c.cut()
	}
	return nil
}

// addPage adds what there is of the page that is being filled. If that fails the page stays, or the content is broken.
func (c *content) addPage() error {
	n, before := c.pageLen, c.done
	if c.pageLen = 0; n == 0 {
		return nil
	}
	err := c.add(c.page[:n])
	if err != nil && c.done == before {
		c.pageLen = n
	} else {
		c.broken = err
	}
	return err
}

// passCuts says whether one of the cuts has been reached, and forgets those behind.
func (c *content) passCuts() (reached bool) {
	for len(c.cuts) > 0 && c.cuts[0] <= c.done {
		reached = reached || c.cuts[0] == c.done
		c.cuts = c.cuts[1:]
	}
	return reached
}

func (c *content) addZeros(n int64) error {
	for len(c.cuts) > 0 && n > c.cuts[0]-c.done {
		part := max(c.cuts[0]-c.done, 0)
		n -= part
		if err := c.addZeroRun(part); err != nil {
			return err
		}
	}
	return c.addZeroRun(n)
}

func (c *content) addZeroRun(n int64) error {
	if n == 0 {
		c.passCuts()
		return nil
	}
	c.s.Counts.Zero.Add(n)
	if c.split.Zero(int(n)) {
		if err := c.cut(); err != nil {
			return err
		}
	}
	if k := len(c.tail.Runs) - 1; k >= 0 && c.tail.Runs[k].Chunk == manifest.ZeroRun {
		c.tail.Runs[k].Len += n
	} else {
		c.tail.Runs = append(c.tail.Runs, manifest.Run{Start: c.tail.Len, Len: n, Chunk: manifest.ZeroRun})
	}
	c.tail.Len += n
	c.done += n
	if c.passCuts() {
		return c.cut()
	}
	return nil
}

// room makes room for n bytes in cur. Small files, the most of a checkpoint, do with a small buffer, and most chunks
// with one of half again their average size.
func (c *content) room(n int) error {
	if len(c.cur)+n <= cap(c.cur) {
		return nil
	}
	want, most := 64<<10, min(c.s.o.Params.Avg/2*3, c.s.o.Params.Max)
	switch {
	case len(c.cur)+n > most:
		want = c.s.o.Params.Max
	case c.cur != nil || c.cutBefore:
		want = most
	}
	b, err := c.s.chunks.Arena.Get(want)
	if err != nil {
		return err
	}
	b = append(b, c.cur...)
	c.s.chunks.Arena.Put(c.cur)
	c.cur = b
	return nil
}

// cut ends the chunk being built.
func (c *content) cut() error {
	c.split.Reset()
	if len(c.cur) == 0 {
		return nil
	}
	// The length is known now, the rest when the workers are done.
	c.tail.Chunks = append(c.tail.Chunks, manifest.ChunkRef{Len: uint32(len(c.cur))})
	p := c.s.chunks.Submit(c.cur, c.policy, c.pins)
	c.inFlight = append(c.inFlight, p)
	c.told.Note(p)
	c.cur, c.cutBefore = nil, true
	return c.spillFull()
}

// spillFull closes the tail, whose last chunk is cut, when it is as long as a segment may be.
func (c *content) spillFull() error {
	if len(c.tail.Chunks) >= manifest.MaxChunks || len(c.tail.Runs) >= manifest.MaxRuns {
		if err := c.closeTail(); err != nil {
			return err
		}
		return c.spill()
	}
	return nil
}

// settle waits until all chunks cut so far are stored.
func (c *content) settle() error {
	var first error
	for i, p := range c.inFlight {
		if p == nil {
			continue
		}
		<-p.Done
		if p.Err != nil {
			if first == nil {
				first = p.Err
			}
			continue
		}
		c.tail.Chunks[i] = p.Ref
		c.inFlight[i] = nil
	}
	return first
}

// failed gives the error of a chunk that is known to have failed, without waiting.
func (c *content) failed() error {
	for _, p := range c.inFlight {
		if p != nil {
			select {
			case <-p.Done:
				if p.Err != nil {
					return p.Err
				}
			default:
				return nil
			}
		}
	}
	return nil
}

// closeTail turns the tail, whose last chunk must be cut, into closed segments, one as a rule.
func (c *content) closeTail() error {
	if err := c.settle(); err != nil {
		return err
	}
	if c.tail.Len == 0 {
		return nil
	}
	c.tail.DropUnused()
	parts, err := closeParts(&c.tail)
	if err != nil {
		return err
	}
	for _, seg := range parts {
		c.closed = append(c.closed, seg)
		c.zero += seg.zero
	}
	c.tail = manifest.Segment{Start: c.done}
	c.inFlight = nil
	return nil
}

// closeParts makes closed segments of m, one as a rule.
func closeParts(m *manifest.Segment) (out []*draftSegment, err error) {
	for _, part := range m.Split() {
		encoded, err := manifest.EncodeSegment(part)
		if err != nil {
			return nil, err
		}
		out = append(out, &draftSegment{start: part.Start, len: part.Len, zero: part.Zero(), encoded: encoded,
			size: int64(len(encoded)), sum: chunks.SumOf(encoded)})
	}
	return out, nil
}

// key is where a closed segment is kept in Badger.
func (c *content) key(seg *draftSegment) string {
	return manifest.SegmentKey(c.draft, c.number, seg.start)
}

// encoded gives a closed segment as it is kept.
func (c *content) encoded(seg *draftSegment) ([]byte, error) {
	if seg.encoded != nil {
		return seg.encoded, nil
	}
	b, err := c.s.chunks.Local(c.key(seg), seg.sum)
	return b, fault.Classify("read draft", err)
}

// spill moves closed segments out of memory.
func (c *content) spill() error {
	var puts []chunks.Put
	for _, seg := range c.closed {
		if seg.encoded != nil {
			puts = append(puts, chunks.Put{Key: c.key(seg), Payload: seg.encoded})
		}
	}
	if err := c.s.chunks.PutLocal(puts); err != nil {
		return err
	}
	for _, seg := range c.closed {
		seg.encoded = nil
	}
	return nil
}

// finish puts everything into segments, or, for a file shorter than a page, into inline.
func (c *content) finish() (inline []byte, err error) {
	if err := c.appendPending(); err != nil {
		return nil, err
	}
	if c.done == 0 && c.pageLen < chunk.PageSize {
		return c.page[:c.pageLen], nil
	}
	if err := c.addPage(); err != nil {
		return nil, err
	}
	if err := c.cut(); err != nil {
		return nil, err
	}
	if err := c.closeTail(); err != nil {
		return nil, err
	}
	return nil, c.closeEdited(0)
}

// discard gives the buffers back. The content cannot be used afterwards.
func (c *content) discard() {
	c.dropPending()
	_ = c.settle() // errors no longer matter: nobody will read this
	c.s.chunks.Arena.Put(c.cur)
	c.cur = nil
}
