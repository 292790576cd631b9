package chunks

import (
	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// MovedKey is the key under which the number of the last pack is recorded that Optimize put chunks into. While a
// manifest cannot be read, gc tells by the age of a pack what may belong to it; a chunk that was moved is in a
// younger one.
const MovedKey = "moved/last"

// Move is a chunk that gets another place.
type Move struct {
	ID       chunk.ID
	From, To pack.Loc
}

// commitMoves commits placed chunks, but for those that were stored anew meanwhile.
func (s *Store) commitMoves(list []Move) (moved []Move, err error) {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	if s.over {
		return nil, errClosed
	}
	s.takeLosses()
	var chunks []pack.Chunk
	for _, m := range list {
		if !s.Packs.Condemned(m.To.Pack) && s.ingest.claim(m) {
			moved = append(moved, m)
			chunks = append(chunks, pack.Chunk{ID: m.ID, Loc: m.To})
		}
	}
	if len(chunks) == 0 {
		return nil, nil
	}
	s.Packs.Adopt(chunks)
	return moved, s.commitLocked(nil)
}

// claim enters the new place of a chunk among the recent ones, unless the chunk is just being stored or is no
// longer where it was.
func (in *ingest) claim(m Move) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.recent[m.ID] != nil {
		return false
	}
	if now, err := in.s.DB.Loc(m.ID); err != nil || now != m.From {
		return false
	}
	r := &recent{done: make(chan struct{}), loc: m.To}
	close(r.done)
	in.recent[m.ID] = r
	return true
}

// movePins makes pins of one of two places of a chunk pins of the other as well. Look-ups that were told of the first
// are waited for.
func (s *Store) movePins(list []Move) {
	s.sweepMu.Lock()
	defer s.sweepMu.Unlock()
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	for p := range s.pinners {
		p.mu.Lock()
		for _, m := range list {
			if p.slots[m.From.Pack].Has(m.From.Page) || p.slots[m.To.Pack].Has(m.To.Page) {
				p.slots.Set(m.From)
				p.slots.Set(m.To)
			}
		}
		p.mu.Unlock()
	}
}

// Adopt makes placed slots the places of their chunks, but for those that were stored anew meanwhile, and gives the
// moves that were made. A pin of one of the two slots is a pin of both.
func (s *Store) Adopt(list []Move) (moved []Move, err error) {
	moved, err = s.commitMoves(list)
	// Also after an error: somebody may have been told of the new place, and the old one may be what is left.
	s.movePins(moved)
	s.moves.Add(1)
	return moved, err
}

// CountMoves gives how often chunks were given other places: a location that was looked up before may be given back.
func (s *Store) CountMoves() uint64 { return s.moves.Load() }
