package chunks

import (
	"maps"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// What tests look at, and do, inside of a store.

// RecentChunks gives the chunks that are stored and not yet in the index, and where they are.
func (s *Store) RecentChunks() map[chunk.ID]pack.Loc {
	s.ingest.mu.Lock()
	defer s.ingest.mu.Unlock()
	out := map[chunk.ID]pack.Loc{}
	for id, r := range s.ingest.recent {
		out[id] = r.loc
	}
	return out
}

// DamagedChunks gives the slots that are known to be damaged.
func (s *Store) DamagedChunks() map[chunk.ID]pack.Loc {
	s.damage.mu.Lock()
	defer s.damage.mu.Unlock()
	return maps.Clone(s.damage.slots)
}

// CountPinners gives how many drafts are known to pin slots.
func (s *Store) CountPinners() int {
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	return len(s.pinners)
}

// LoseIndexed puts the store into the state after a commit that could not write the chunks of pack n to the index, and
// gives how many these are.
func (s *Store) LoseIndexed(n uint32) (int, error) {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	b := s.DB.Batch()
	if _, _, err := s.Packs.Read(n, 0, func(r pack.Record) error {
		if r.Chunk != nil {
			b.DeleteChunk(r.Chunk.ID)
			s.unindexed = append(s.unindexed, *r.Chunk)
		}
		return nil
	}); err != nil {
		return 0, err
	}
	return len(s.unindexed), b.Flush()
}
