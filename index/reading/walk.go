package reading

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/roots"
)

// ErrRemoved ends the walk over a checkpoint that was removed meanwhile.
var ErrRemoved = errors.New("removed meanwhile")

// WalkSegments calls fn for every segment of every file of a checkpoint. Damage of the manifest goes to bad, which
// decides whether to go on; it names the file where one is concerned. If the checkpoint is removed meanwhile, missing
// parts are no damage: the walk ends with errRemoved. Segments are read past the cache: a walk over the whole store
// must not empty it.
func (s *Reader) WalkSegments(ctx context.Context, r *roots.Root, pb *manifestpb.Checkpoint,
	fn func(*manifestpb.Entry, *manifest.Segment) error, bad func(file string, off int64, err error) error) error {
	c, err := s.load(r, pb)
	if err != nil && s.roots.IsGone(r) {
		return ErrRemoved
	}
	if err != nil {
		return bad("", 0, err)
	}
	for _, e := range c.entries {
		for i, start := range e.Segments {
			if err := ctx.Err(); err != nil {
				return err
			}
			seg, err := s.readSegment(pb.Id, e, i)
			if err != nil && s.roots.IsGone(r) {
				return ErrRemoved
			}
			if err != nil {
				err = bad(e.Path, start, err)
			} else {
				err = fn(e, seg)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// Part gives the record of a part of a sealed manifest. One without a sequence was never sealed: it is what the draft
// had before, which an index shows that has lost what came later.
func (s *Reader) Part(key string) ([]byte, error) {
	seq, payload, err := s.chunks.DB.Meta(key)
	switch {
	case errors.Is(err, keys.ErrMissing):
		return nil, fmt.Errorf("%w: a part of the manifest is missing: %s", keys.ErrDamaged, key)
	case err == nil && seq == 0:
		return nil, fmt.Errorf("%w: a part of the manifest is older than the checkpoint: %s", keys.ErrDamaged, key)
	}
	return payload, err
}

// readSegment gives segment i of an entry and checks that it is what the entry says.
func (s *Reader) readSegment(id string, e *manifestpb.Entry, i int) (*manifest.Segment, error) {
	payload, err := s.Part(manifest.SegmentKey(id, e.Number, e.Segments[i]))
	if err != nil {
		return nil, err
	}
	seg, err := manifest.DecodeSegment(payload)
	if err != nil {
		return nil, err
	}
	end := e.Size
	if i+1 < len(e.Segments) {
		end = e.Segments[i+1]
	}
	if seg.Start != e.Segments[i] || seg.Start+seg.Len != end {
		return nil, fmt.Errorf("%w: a part of the manifest covers [%d, %d), not [%d, %d)", keys.ErrDamaged, seg.Start,
			seg.Start+seg.Len, e.Segments[i], end)
	}
	return seg, nil
}

// Locator looks up locations for walks over many manifests, which name the same chunks again and again. One goroutine.
type Locator struct {
	s     *chunks.Store
	slots []located // direct-mapped by id
}

type located struct {
	id          chunk.ID
	loc, before pack.Loc
}

// NewLocator gives a locator that has looked nothing up.
func NewLocator(s *chunks.Store) *Locator { return &Locator{s: s, slots: make([]located, 1<<16)} }

// Locate gives the location of a chunk that a manifest names.
func (l *Locator) Locate(id chunk.ID) (pack.Loc, error) {
	loc, _, err := l.Places(id)
	return loc, err
}

// Places gives the location of a chunk that a manifest names, and its place before; see [chunks.Store.Places].
func (l *Locator) Places(id chunk.ID) (loc, before pack.Loc, err error) {
	slot := &l.slots[int(id[0])|int(id[1])<<8]
	if slot.id == id {
		return slot.loc, slot.before, nil
	}
	loc, before, err = l.s.Places(id)
	if err == nil {
		*slot = located{id, loc, before}
	}
	return loc, before, err
}

// InlineBytes gives how many bytes of a checkpoint lie in its table of files.
func (s *Reader) InlineBytes(r *roots.Root, pb *manifestpb.Checkpoint) (int64, error) {
	c, err := s.load(r, pb)
	if err != nil {
		return 0, err
	}
	var n int64
	for _, e := range c.entries {
		n += int64(len(e.Inline))
	}
	return n, nil
}
