package reading

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// Away calls yield for the stretches of the file that lie in a bucket, in order, each with the chunk that holds it.
// Stretches whose place cannot be found are left out: a read of them gets the error.
func (f *File) Away(yield func(off, n int64, c pack.Chunk) bool) error {
	var last pack.Chunk
	return f.walk(0, f.e.Size, func(x stretch) bool {
		if x.c == nil {
			return true
		}
		if last.ID != x.c.ID {
			loc, err := f.c.s.chunks.WhereIs(x.c.ID, x.c.Len, x.loc)
			if err != nil {
				return true
			}
			last = pack.Chunk{ID: x.c.ID, Loc: loc}
		}
		return !last.Loc.Distant() || yield(x.at, x.n, last)
	})
}

// Bring fetches chunks that lie in a bucket before anybody reads them, in their order, and calls came with the numbers
// of those that may be read now; see [chunks.Store.Bring].
func (s *Reader) Bring(ctx context.Context, list []pack.Chunk, came func(numbers []int)) {
	s.chunks.Distant.Bring(ctx, list, s.chunks.Holds, came)
}

// HotSet is the hot set of a checkpoint as a bucket has it. It is safe for concurrent use.
type HotSet struct {
	s    *Reader
	size int64
	list []pack.Chunk
}

// HotSet gives the hot set that came with a checkpoint from a bucket. Class NotFound when there is none.
func (s *Reader) HotSet(id string) (*HotSet, error) {
	const op = "open hot set"
	_, payload, err := s.chunks.DB.Meta(manifest.HotKey(id))
	if errors.Is(err, keys.ErrMissing) || err == nil && len(payload) == 0 {
		return nil, &fault.Error{Class: fault.NotFound, Op: op, Err: errors.New("no hot set")}
	}
	if err != nil {
		return nil, fault.Classify(op, err)
	}
	h := &HotSet{s: s}
	var ids []chunk.ID
	if h.size, ids, err = manifest.DecodeHot(payload); err != nil {
		return nil, &fault.Error{Class: fault.Corrupt, Op: op, Err: err}
	}
	for i, id := range ids {
		loc, err := s.chunks.Locate(id)
		if want := h.length(i); err == nil && int64(loc.Raw) != want {
			err = fmt.Errorf("a piece of %d bytes, not %d", loc.Raw, want)
		}
		if err != nil {
			return nil, &fault.Error{Class: fault.Corrupt, Op: op, Err: err}
		}
		h.list = append(h.list, pack.Chunk{ID: id, Loc: loc})
	}
	return h, nil
}

// length gives the bytes of a piece.
func (h *HotSet) length(i int) int64 {
	return min(manifest.HotPiece, h.size-int64(i)*manifest.HotPiece)
}

// Size gives the length of the hot set in bytes.
func (h *HotSet) Size() int64 { return h.size }

// Pieces gives the chunks that hold it, each with manifest.HotPiece bytes but the last.
func (h *HotSet) Pieces() []pack.Chunk { return h.list }

// Close does nothing.
func (h *HotSet) Close() error { return nil }

// ReadAt is of io.ReaderAt. Pieces that p takes whole are read straight into it, neighbours at once.
func (h *HotSet) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 || off >= h.size {
		return 0, io.EOF
	}
	end := min(off+int64(len(p)), h.size)
	var list []wantedChunk
	for at := off; at < end; {
		i := at / manifest.HotPiece
		from := at - i*manifest.HotPiece
		take := min(h.length(int(i))-from, end-at)
		list = append(list, wantedChunk{loc: h.list[i].Loc, parts: []part{{at: at, n: take, off: from}},
			ref: &manifest.ChunkRef{ID: h.list[i].ID, Len: uint32(h.length(int(i)))}})
		at += take
	}
	h.s.readInto(list, p[:end-off], off, false, func(_ int64, failed error) { err = errors.Join(err, failed) })
	switch {
	case err != nil:
		return 0, err
	case end-off < int64(len(p)):
		err = io.EOF
	}
	return int(end - off), err
}
