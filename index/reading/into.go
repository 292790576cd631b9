package reading

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// intoRead bounds what ReadInto reads from a pack at once: it is decoded while it is in the processor's cache, and
// many read at a time.
const intoRead = 1 << 20

// part is a stretch of a file of a chunk's content: n bytes from byte off of the chunk, for the file at at.
type part struct {
	at, n, off int64
}

// wantedChunk is a chunk whose content, or parts of it, a reader takes.
type wantedChunk struct {
	ref   *manifest.ChunkRef
	parts []part
	loc   pack.Loc // zero until it has been looked up
}

// ReadInto reads as ReadAt, for those who keep what they read: chunks that p takes whole bypass the cache: they are
// decoded straight into p, or read into it if they are stored raw. Other parts come from the cache, except that the
// first read of a part of a raw chunk bypasses it too. If the caller reads by Spans, nothing is decoded twice.
func (f *File) ReadInto(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, &fault.Error{Class: fault.Invalid, Op: "read", Checkpoint: f.c.name, File: f.e.Path,
			Err: errors.New("negative offset")}
	}
	begin := time.Now()
	s, past := f.c.s, f.past.Load()
	end := min(off+int64(len(p)), f.e.Size)
	if off >= end {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	var direct []wantedChunk
	var failed error
	fail := func(at int64, err error) {
		if failed == nil {
			failed = f.fail(at, err)
		}
	}
	var now wantedChunk
	flush := func() {
		w := now
		now = wantedChunk{}
		if w.ref == nil {
			return
		}
		var n int64
		for _, x := range w.parts {
			n += x.n
		}
		e, cached := s.cache.lookup(w.ref.ID)
		if !cached && s.passesBy(&w, n, past) {
			direct = append(direct, w)
			return
		}
		owner := false
		if !cached {
			e, owner = s.cache.acquire(w.ref.ID)
		}
		defer s.cache.release(e)
		if owner {
			s.fetch([]fetch{newFetch(e, w.ref, w.loc)}, past)
		} else {
			s.Counts.Hits.Add(1)
		}
		data, err := e.content(context.Background(), w.ref.Len)
		if err != nil {
			fail(w.parts[0].at, err)
			return
		}
		for _, x := range w.parts {
			copy(p[x.at-off:][:x.n], data[x.off:])
		}
	}
	err := f.walk(off, end, func(x stretch) bool {
		to := p[x.at-off:][:x.n]
		switch {
		case x.inline != nil:
			copy(to, x.inline)
		case x.c == nil:
			clear(to)
		default:
			if k := len(now.parts); k > 0 &&
				(now.ref.ID != x.c.ID || now.ref.Len != x.c.Len || now.parts[k-1].off+now.parts[k-1].n != x.off) {
				flush()
			}
			now.ref, now.loc = x.c, x.loc
			now.parts = append(now.parts, part{at: x.at, n: x.n, off: x.off})
		}
		return true
	})
	if err != nil {
		return 0, err
	}
	flush()
	if failed == nil {
		s.readInto(direct, p, off, past, fail)
	}
	if failed != nil {
		return 0, failed
	}
	n := int(end - off)
	s.Counts.Read.Add(int64(n))
	if s.o.OnRead != nil {
		s.o.OnRead(time.Since(begin), int64(n), len(direct) == 0)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// passesBy reports whether w, of which n bytes are taken, is not to enter the cache. A part of a raw chunk costs a look
// at the page cache; a reader who soon asks for another one is spared the second.
func (s *Reader) passesBy(w *wantedChunk, n int64, past bool) bool {
	if n == int64(w.ref.Len) {
		return true
	}
	if past {
		return false
	}
	loc, err := s.chunks.WhereIs(w.ref.ID, w.ref.Len, w.loc)
	if err != nil || loc.Codec != chunk.Raw {
		return false
	}
	w.loc = loc
	return !s.parted.again(w.ref.ID)
}

// readInto reads chunks to where p, which begins at byte base of the file, takes them.
func (s *Reader) readInto(list []wantedChunk, p []byte, base int64, past bool, fail func(int64, error)) {
	ok := list[:0]
	for _, w := range list {
		var err error
		if w.loc, err = s.chunks.WhereIs(w.ref.ID, w.ref.Len, w.loc); err != nil {
			fail(w.parts[0].at, err)
			continue
		}
		ok = append(ok, w)
	}
	s.Hooks.Located.Run()
	for list = ok; len(list) > 0; {
		n, bytes := 1, list[0].loc.Slot()
		for n < len(list) && list[n].loc.Pack == list[0].loc.Pack &&
			list[n].loc.Offset() == list[n-1].loc.Offset()+list[n-1].loc.Slot() &&
			bytes+list[n].loc.Slot() <= intoRead {
			bytes += list[n].loc.Slot()
			n++
		}
		s.readIntoRun(list[:n], p, base, past, fail)
		list = list[n:]
	}
}

func (s *Reader) readIntoRun(run []wantedChunk, p []byte, base int64, past bool, fail func(int64, error)) {
	slots, bufs := make([]pack.Chunk, len(run)), make([][]byte, len(run))
	borrowed := make([][]byte, len(run))
	defer func() {
		for _, b := range borrowed {
			s.chunks.Arena.Put(b)
		}
	}()
	for i, w := range run {
		slots[i] = pack.Chunk{ID: w.ref.ID, Loc: w.loc}
		if w.loc.Codec == chunk.Raw && len(w.parts) == 1 && w.loc.Slot() == w.parts[0].n {
			at := w.parts[0].at - base
			bufs[i] = p[at:at:min(at+w.parts[0].n+pack.Room, int64(len(p)))]
			continue
		}
		b, err := s.chunks.Arena.Get(int(w.loc.Slot()))
		if err != nil {
			fail(w.parts[0].at, err)
			return
		}
		bufs[i], borrowed[i] = b, b
	}
	errs := s.chunks.ReadSlots(slots, bufs, past)
	for i, w := range run {
		err := errs[i]
		if err == nil {
			s.Counts.Misses.Add(1)
			s.Counts.Fetched.Add(w.loc.Slot())
			if borrowed[i] != nil {
				err = s.decodeInto(w, bufs[i], p, base)
			} else if w.loc.Stored != w.loc.Raw {
				err = fmt.Errorf("%w: raw chunk of %d bytes, not %d", keys.ErrDamaged, w.loc.Stored, w.loc.Raw)
			}
		}
		if err != nil {
			content, err := s.chunks.ReadMoved(w.ref.ID, w.loc, past, err)
			if err != nil {
				fail(w.parts[0].at, err)
				continue
			}
			for _, x := range w.parts {
				copy(p[x.at-base:][:x.n], content[x.off:])
			}
			s.chunks.Arena.Put(content)
		}
	}
}

// decodeInto puts the content of a slot to where p takes it.
func (s *Reader) decodeInto(w wantedChunk, slot, p []byte, base int64) error {
	if w.loc.Codec != chunk.Raw && w.parts[0].n == int64(w.loc.Raw) {
		at := w.parts[0].at - base
		to := p[at : at : at+w.parts[0].n]
		data, err := s.chunks.Coder.Decode(w.loc.Codec, slot[:w.loc.Stored], to, int(w.loc.Raw))
		if err != nil {
			return fmt.Errorf("%w: %v", pack.ErrCorrupt, err)
		}
		if &data[0] != &to[:1][0] {
			copy(to[:cap(to)], data) // the decoder took another buffer
		}
		return nil
	}
	// decode gives the slot back, which its caller does here.
	data := slot[:w.loc.Stored]
	switch {
	case w.loc.Codec != chunk.Raw:
		out, err := s.chunks.Arena.Get(int(w.loc.Raw))
		if err != nil {
			return err
		}
		defer s.chunks.Arena.Put(out)
		if data, err = s.chunks.Coder.Decode(w.loc.Codec, data, out[:0:w.loc.Raw], int(w.loc.Raw)); err != nil {
			return fmt.Errorf("%w: %v", pack.ErrCorrupt, err)
		}
	case w.loc.Stored != w.loc.Raw:
		return fmt.Errorf("%w: raw chunk of %d bytes, not %d", keys.ErrDamaged, w.loc.Stored, w.loc.Raw)
	}
	for _, x := range w.parts {
		copy(p[x.at-base:][:x.n], data[x.off:])
	}
	return nil
}

// Spans calls yield for the ranges of the file whose content is stored together, in order: reading all of one costs
// no more than reading a part of it. Zero runs within a range belong to it, other zeros to none.
func (f *File) Spans(yield func(start, end int64) bool) error {
	var id chunk.ID
	var start, end, next int64 // next is the byte of the chunk after what was passed
	more := true
	err := f.walk(0, f.e.Size, func(x stretch) bool {
		if x.zero() {
			return true
		}
		if x.c != nil && next > 0 && x.c.ID == id && x.off == next {
			end, next = x.at+x.n, next+x.n
			return true
		}
		if end > start {
			more = yield(start, end)
		}
		start, end, next = x.at, x.at+x.n, 0
		if x.c != nil {
			id, next = x.c.ID, x.off+x.n
		}
		return more
	})
	if err == nil && more && end > start {
		yield(start, end)
	}
	return err
}

// WillNeed lets the kernel read what [off, off+n) is stored in ahead of time. It waits for no disk longer than it takes
// to ask, and an error here is left to the read that follows.
func (f *File) WillNeed(off, n int64) {
	var first, last pack.Loc
	ask := func() {
		if first.Slot() > 0 {
			f.c.s.chunks.Packs.WillNeed(first.Pack, first.Offset(), last.Offset()+last.Slot()-first.Offset())
		}
	}
	var seen chunk.ID
	f.walk(off, min(off+n, f.e.Size), func(x stretch) bool {
		if x.c == nil || x.c.ID == seen {
			return true
		}
		seen = x.c.ID
		loc, err := f.c.s.chunks.WhereIs(x.c.ID, x.c.Len, x.loc)
		if err != nil {
			return true
		}
		if first.Slot() > 0 && loc.Pack == last.Pack && loc.Offset() == last.Offset()+last.Slot() {
			last = loc
			return true
		}
		ask()
		first, last = loc, loc
		return true
	})
	ask()
}
