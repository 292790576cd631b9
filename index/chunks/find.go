package chunks

import (
	"errors"
	"fmt"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/distant"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/object"
)

// Locate gives the location of a chunk that a manifest names: here, or else in a distant pack.
func (s *Store) Locate(id chunk.ID) (pack.Loc, error) {
	loc, err := s.LocateHere(id)
	if errors.Is(err, keys.ErrMissing) {
		loc, err = s.DB.DistantLoc(id)
	}
	if errors.Is(err, keys.ErrMissing) {
		return loc, errUnknownChunk(id)
	}
	return loc, err
}

func errUnknownChunk(id chunk.ID) error {
	return errors.New("the index does not know its chunk " + id.String()[:12])
}

// LocateHere gives the location of a chunk that is stored here, ErrMissing or ErrDamaged.
func (s *Store) LocateHere(id chunk.ID) (pack.Loc, error) {
	s.ingest.mu.Lock()
	r := s.ingest.recent[id]
	s.ingest.mu.Unlock()
	if r != nil {
		<-r.done
		if r.err == nil {
			return r.loc, nil
		}
	}
	return s.DB.Loc(id)
}

// WhereIs gives the location of a chunk of want bytes. It is known, unless that is zero, or the chunk has been
// found damaged since: then it may have been stored anew.
func (s *Store) WhereIs(id chunk.ID, want uint32, known pack.Loc) (loc pack.Loc, err error) {
	if loc = known; loc == (pack.Loc{}) || s.MetDamage(id) {
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

// holds refuses a slot that does not hold the content of a chunk.
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
	if len(content) != int(c.Loc.Raw) || chunk.Sum(content) != c.ID {
		return fmt.Errorf("%w: the content is not what its id says", pack.ErrCorrupt)
	}
	return nil
}

// Learn notes where chunks lie in distant packs; see [distant.Packs.Learn].
func (s *Store) Learn(packs []object.PackRef, list []pack.Chunk) error {
	return s.Distant.Learn(packs, list, s.commitDistant)
}

func (s *Store) commitDistant(list []distant.Put) error {
	puts := make([]Put, len(list))
	for i, p := range list {
		puts[i] = Put(p)
	}
	return s.Commit(puts)
}

// ReadSlot gives the content of a chunk's slot, in a buffer of the arena.
func (s *Store) ReadSlot(c pack.Chunk, past bool) ([]byte, error) {
	buf, err := s.Arena.Get(int(c.Loc.Slot()))
	if err != nil {
		return nil, err
	}
	bufs := [][]byte{buf}
	err = s.ReadSlots([]pack.Chunk{c}, bufs, past)[0]
	if err == nil {
		buf, err = s.Decode(c.Loc, bufs[0])
	}
	if err != nil {
		s.Arena.Put(buf)
		return nil, err
	}
	return buf, nil
}

// maxMoves bounds how often a reader follows a chunk: it is moved once by Optimize, and again where it heals.
const maxMoves = 4

// ReadMoved gives the content of a chunk, in a buffer of the arena, that could not be read at a place where it was
// said to be: it may have been moved since, and the place given back; or another distant pack has it. Where it has not, what was wrong is recorded
// as damage.
func (s *Store) ReadMoved(id chunk.ID, tried pack.Loc, past bool, why error) ([]byte, error) {
	for range maxMoves {
		if tried.Distant() && (errors.Is(why, distant.ErrGone) || errors.Is(why, pack.ErrCorrupt)) {
			if _, err := s.Distant.Elsewhere(tried.Pack); err != nil {
				s.log.Error("no other pack could be looked for", "chunk", id.String(), "err", err)
			}
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
