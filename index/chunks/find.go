package chunks

import (
	"errors"
	"fmt"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/distant"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// Locate gives the location of a chunk that a manifest names: here, or else in a distant pack.
func (s *Store) Locate(id chunk.ID) (pack.Loc, error) {
	if r := s.ingest.recently(id); r != nil {
		return r.loc, nil
	}
	return s.indexed(id)
}

// Places gives the location of a chunk as [Store.Locate] does. Where the chunk was stored anew a moment ago, before is
// the location that the index still has: it is the only one that is left after a crash, or a commit that fails.
func (s *Store) Places(id chunk.ID) (loc, before pack.Loc, err error) {
	r := s.ingest.recently(id)
	loc, err = s.indexed(id)
	switch {
	case r == nil:
		return loc, pack.Loc{}, err
	case err != nil:
		return r.loc, pack.Loc{}, nil
	}
	return r.loc, loc, nil
}

// indexed gives the location of a chunk as the index has it: here, or else in a distant pack.
func (s *Store) indexed(id chunk.ID) (pack.Loc, error) {
	loc, err := s.DB.Loc(id)
	if errors.Is(err, keys.ErrMissing) {
		loc, err = s.DB.DistantLoc(id)
	}
	if errors.Is(err, keys.ErrMissing) {
		return loc, errUnknownChunk(id)
	}
	return loc, err
}

// HasLost says whether the index may have lost the place of a chunk that a journal here tells of: it cannot be read, or
// the index knows of one in distant packs alone, or of an earlier one, where the chunk was before it was stored anew.
func (s *Store) HasLost(c pack.Chunk) bool {
	loc, err := s.DB.Loc(c.ID)
	if !errors.Is(err, keys.ErrMissing) {
		return err != nil || isLater(c.Loc, loc)
	}
	_, err = s.DB.DistantLoc(c.ID)
	return err == nil
}

func errUnknownChunk(id chunk.ID) error {
	return errors.New("the index does not know its chunk " + id.String()[:12])
}

// LocateHere gives the location of a chunk that is stored here, ErrMissing or ErrDamaged.
func (s *Store) LocateHere(id chunk.ID) (pack.Loc, error) {
	if r := s.ingest.recently(id); r != nil {
		return r.loc, nil
	}
	return s.DB.Loc(id)
}

// WhereIs gives the location of a chunk of want bytes. It is known, unless that is zero, or the chunk has been
// found damaged since: then it may have been stored anew.
func (s *Store) WhereIs(id chunk.ID, want uint32, known pack.Loc) (loc pack.Loc, err error) {
	if loc = known; loc == (pack.Loc{}) || s.KnownDamaged(id) {
		loc, err = s.Locate(id)
	}
	if err == nil && loc.Raw != want {
		err = fmt.Errorf("%w: chunk of %d bytes, not %d", keys.ErrDamaged, loc.Raw, want)
	}
	return loc, err
}

// Decode turns the slot in buf into content; buf is given back when the content is elsewhere.
func (s *Store) Decode(loc pack.Loc, buf []byte) ([]byte, error) {
	stored := buf[:loc.Stored]
	if loc.Codec == chunk.Raw {
		if loc.Stored != loc.Raw {
			return buf, fmt.Errorf("%w: raw chunk of %d bytes, not %d", keys.ErrDamaged, loc.Stored, loc.Raw)
		}
		return stored, nil
	}
	out, err := s.Arena.Get(int(loc.Raw))
	if err != nil {
		return buf, err
	}
	data, err := s.Coder.Decode(loc.Codec, stored, out[:0:loc.Raw], int(loc.Raw))
	if err != nil {
		s.Arena.Put(out)
		return buf, fmt.Errorf("%w: %v", pack.ErrCorrupt, err)
	}
	s.Arena.Put(buf)
	return out[:copy(out[:loc.Raw], data)], nil
}

// ReadSlots reads the slots of chunks that lie one behind the other in one pack, here or in a bucket; see
// [pack.Set.ReadSlots].
func (s *Store) ReadSlots(list []pack.Chunk, bufs [][]byte, past bool) []error {
	locs := make([]pack.Loc, len(list))
	for i, c := range list {
		locs[i] = c.Loc
	}
	if len(list) == 0 || !locs[0].Distant() {
		return s.Packs.ReadSlots(locs, bufs, past)
	}
	return s.Distant.ReadSlots(list, bufs, past, s.holds)
}

// Holds refuses a slot, padding included, that is not as it was written or does not hold the content of a chunk.
func (s *Store) Holds(c pack.Chunk, slot []byte) error {
	if crc32c.Checksum(slot) != c.Loc.CRC || c.Loc.Stored == 0 {
		return fmt.Errorf("%w: the slot is not as it was written", pack.ErrCorrupt)
	}
	return s.Distant.Plain(c, slot, s.holds)
}

// holds refuses a slot, decrypted, that does not hold the content of a chunk.
func (s *Store) holds(c pack.Chunk, slot []byte) error {
	content := slot[:c.Loc.Stored]
	if c.Loc.Codec != chunk.Raw {
		out, err := s.Arena.Get(int(c.Loc.Raw))
		if err != nil {
			return err
		}
		defer s.Arena.Put(out)
		if content, err = s.Coder.Decode(c.Loc.Codec, content, out[:0:c.Loc.Raw], int(c.Loc.Raw)); err != nil {
			return fmt.Errorf("%w: %v", pack.ErrCorrupt, err)
		}
	}
	if len(content) != int(c.Loc.Raw) || s.Packs.Coder().Sum(content) != c.ID {
		return fmt.Errorf("%w: the content is not what its id says", pack.ErrCorrupt)
	}
	return nil
}

// Slot gives the slot of a chunk as it is stored, decrypted where it is encrypted, held against its guard, in a buffer
// of the arena.
func (s *Store) Slot(c pack.Chunk, past bool) ([]byte, error) {
	buf, err := s.Arena.Get(int(c.Loc.Slot()))
	if err != nil {
		return nil, err
	}
	bufs := [][]byte{buf}
	if err := s.ReadSlots([]pack.Chunk{c}, bufs, past)[0]; err != nil {
		s.Arena.Put(bufs[0])
		return nil, err
	}
	return bufs[0], nil
}

// ReadSlot gives the content of a chunk's slot, in a buffer of the arena.
func (s *Store) ReadSlot(c pack.Chunk, past bool) ([]byte, error) {
	buf, err := s.Slot(c, past)
	if err != nil {
		return nil, err
	}
	content, err := s.Decode(c.Loc, buf)
	if err != nil {
		s.Arena.Put(content)
		return nil, err
	}
	return content, nil
}

// MaxMoves bounds how often a reader follows a chunk: it is moved once by Optimize, and again where it heals.
const MaxMoves = 4

// ReadMoved gives the content of a chunk, in a buffer of the arena, that could not be read where it was said to be.
// It may have been moved since, or another distant pack has it. Otherwise what was wrong is recorded as damage.
func (s *Store) ReadMoved(id chunk.ID, tried pack.Loc, past bool, why error) ([]byte, error) {
	for range MaxMoves {
		if tried.Distant() && (errors.Is(why, distant.ErrGone) || errors.Is(why, pack.ErrCorrupt)) {
			if _, err := s.Distant.Elsewhere(tried.Pack); err != nil {
				s.log.Error("no other pack could be looked for", "chunk", id.String(), "err", err)
			}
			s.Distant.OfOthers(id, s.Commit)
		}
		now, err := s.Locate(id)
		if err != nil || now == tried || now.Raw != tried.Raw {
			break
		}
		content, err := s.ReadSlot(pack.Chunk{ID: id, Loc: now}, past)
		if err == nil {
			return content, nil
		}
		tried, why = now, err
	}
	s.Unreadable(id, tried, why)
	return nil, why
}
