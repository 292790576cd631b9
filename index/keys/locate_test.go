package keys

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/pack"
)

func openAt(t testing.TB, dir string) *DB {
	t.Helper()
	d, err := Open(dir, slog.New(slog.DiscardHandler), Room{Dir: dir}, Tuning{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// chunks makes an index of n chunks.
func chunks(t testing.TB, n int) (*DB, []chunk.ID) {
	t.Helper()
	d := openAt(t, t.TempDir())
	t.Cleanup(func() { d.Close() })
	rnd := rand.NewChaCha8([32]byte{1})
	ids := make([]chunk.ID, n)
	b := d.Batch()
	for i := range ids {
		rnd.Read(ids[i][:])
		b.SetChunk(pack.Chunk{ID: ids[i],
			Loc: pack.Loc{Pack: 3, Page: uint32(i), Stored: 4096, Raw: 8192, Codec: chunk.S2, CRC: rand.Uint32()}})
	}
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	return d, ids
}

// Looked up all at once, chunks are where looking them up one by one finds them, among many others or few.
func TestLocs(t *testing.T) {
	d, all := chunks(t, 5000)
	rnd := rand.NewChaCha8([32]byte{2})
	unknown := make([]chunk.ID, 50)
	for i := range unknown {
		rnd.Read(unknown[i][:])
	}
	for _, want := range [][]chunk.ID{
		nil, all[:1], unknown[:1], all, all[100:120],
		append(slices.Clone(all[:40]), unknown...),
		{all[7], all[7], unknown[0], all[7]},
	} {
		got, err := d.Locs(want)
		if err != nil || len(got) != len(want) {
			t.Fatalf("%d chunks: %d locations, %v", len(want), len(got), err)
		}
		for i, id := range want {
			loc, err := d.Loc(id)
			if err != nil && !errors.Is(err, ErrMissing) {
				t.Fatal(err)
			}
			if got[i] != loc {
				t.Fatalf("chunk %d of %d is at %+v, not %+v", i, len(want), got[i], loc)
			}
		}
	}
}

// A segment's chunks in a store that has no others, and in one that has sixteen times as many.
func BenchmarkLocate(b *testing.B) {
	const segment = 4096
	for name, n := range map[string]int{"Alone": segment, "Among": 16 * segment} {
		d, ids := chunks(b, n)
		ids = ids[:segment]
		b.Run(name+"/OneByOne", func(b *testing.B) {
			for i := range b.N {
				if _, err := d.Loc(ids[i%segment]); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/AtOnce", func(b *testing.B) {
			for n := 0; n < b.N; n += segment {
				if _, err := d.Locs(ids); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
