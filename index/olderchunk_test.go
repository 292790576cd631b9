package index

import (
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// chunksOf gives all chunks and where the index has them.
func chunksOf(t *testing.T, s *Store) map[chunk.ID]pack.Loc {
	t.Helper()
	out := map[chunk.ID]pack.Loc{}
	must(t, s.chunks.DB.Chunks(func(id chunk.ID, loc pack.Loc, err error) error {
		out[id] = loc
		return err
	}))
	return out
}

// showChunks has the index show chunks where they were, as it does where it has lost where they were stored anew.
func showChunks(t *testing.T, s *Store, older map[chunk.ID]pack.Loc) (moved int) {
	t.Helper()
	b := s.chunks.DB.Batch()
	for id, loc := range chunksOf(t, s) {
		if was, ok := older[id]; ok && was != loc {
			b.SetChunk(pack.Chunk{ID: id, Loc: was})
			moved++
		}
	}
	must(t, b.Flush())
	return moved
}

// The index shows chunks where they were before they were stored anew: gc must not take the new slots for dead.
func TestGCWithOlderPlacesOfChunks(t *testing.T) {
	t.Run("stored anew by Optimize", func(t *testing.T) {
		s := newTestStore(t, testOptions(t))
		files := map[string][]byte{"f": heap(1, 1<<20)}
		write(t, s, "a", files)
		older := chunksOf(t, s)
		must(t, s.chunks.Packs.Roll())
		mustOptimize(t, s, upkeep.OptimizeOptions{})
		must(t, s.chunks.Packs.Roll())
		write(t, s, "newer", map[string][]byte{"f": memory(2, 1<<20)})
		res, err := s.GC(t.Context(), GCOptions{}) // the older places are given back
		must(t, err)
		if moved := showChunks(t, s, older); moved == 0 || res.DeadChunks == 0 {
			t.Fatalf("%d chunks of %d are where they were: the test shows nothing", moved, res.DeadChunks)
		}
		_, _ = s.GC(t.Context(), GCOptions{}) // it may complain
		s = repaired(t, s)
		mustHold(t, s, "a", files)
	})
	t.Run("stored anew as they had been damaged", func(t *testing.T) {
		s := newTestStore(t, testOptions(t))
		files := map[string][]byte{"f": memory(1, 1<<20)}
		write(t, s, "a", files)
		older := chunksOf(t, s)
		must(t, s.chunks.Packs.Roll())
		for _, loc := range older {
			flip(t, filepath.Join(s.dir, chunks.PacksFolder, pack.Name(loc.Pack)), loc.Offset())
		}
		_, err := s.Verify(t.Context(), VerifyOptions{})
		must(t, err)
		write(t, s, "again", files)
		must(t, s.chunks.Packs.Roll())
		write(t, s, "newer", map[string][]byte{"f": memory(2, 1<<20)})
		if moved := showChunks(t, s, older); moved == 0 {
			t.Fatal("no chunk was stored anew: the test shows nothing")
		}
		_, _ = s.GC(t.Context(), GCOptions{}) // it may complain
		s = repaired(t, s)
		mustHold(t, s, "a", files)
	})
}

// The index shows chunks where they were before gc gave that back: a dump of the same content must not rely on it.
func TestDumpOverOlderPlacesOfChunks(t *testing.T) {
	files := map[string][]byte{"f": heap(1, 1<<20)}
	s := newTestStore(t, testOptions(t))
	write(t, s, "a", files)
	older := chunksOf(t, s)
	// Its pack stays: it has another checkpoint's chunks too.
	write(t, s, "beside", map[string][]byte{"f": memory(2, 1<<20)})
	must(t, s.chunks.Packs.Roll())
	mustOptimize(t, s, upkeep.OptimizeOptions{})
	res, err := s.GC(t.Context(), GCOptions{})
	must(t, err)
	if moved := showChunks(t, s, older); moved == 0 || res.DeadChunks == 0 {
		t.Fatalf("%d chunks of %d are where they were: the test shows nothing", moved, res.DeadChunks)
	}
	write(t, s, "again", files)
	mustHold(t, s, "again", files)
	s = repaired(t, s)
	mustHold(t, s, "again", files)
}
