package chunks

import (
	"errors"
	"fmt"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// Locate gives the location of a chunk that a manifest names.
func (s *Store) Locate(id chunk.ID) (pack.Loc, error) {
	s.ingest.mu.Lock()
	r := s.ingest.recent[id]
	s.ingest.mu.Unlock()
	if r != nil {
		<-r.done
		if r.err == nil {
			return r.loc, nil
		}
	}
	loc, err := s.DB.Loc(id)
	if errors.Is(err, keys.ErrMissing) {
		return loc, errors.New("the index does not know its chunk " + id.String()[:12])
	}
	return loc, err
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

// ReadSlot gives the content of a slot, in a buffer of the arena.
func (s *Store) ReadSlot(loc pack.Loc, past bool) ([]byte, error) {
	buf, err := s.Arena.Get(int(loc.Slot()))
	if err != nil {
		return nil, err
	}
	bufs := [][]byte{buf}
	err = s.Packs.ReadSlots([]pack.Loc{loc}, bufs, past)[0]
	if err == nil {
		buf, err = s.Decode(loc, bufs[0])
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
// said to be: it may have been moved since, and the place given back. Where it has not, what was wrong is recorded
// as damage.
func (s *Store) ReadMoved(id chunk.ID, tried pack.Loc, past bool, why error) ([]byte, error) {
	for range maxMoves {
		now, err := s.Locate(id)
		if err != nil || now == tried || now.Raw != tried.Raw {
			break
		}
		content, err := s.ReadSlot(now, past)
		if err == nil {
			return content, nil
		}
		tried, why = now, err
	}
	s.Unreadable(id, tried, why)
	return nil, why
}
