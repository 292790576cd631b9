package index

import (
	"bytes"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// chunks makes an index of n chunks.
func chunks(t testing.TB, n int) (*db, []chunk.ID) {
	t.Helper()
	d, err := openDB(t.TempDir(), slog.New(slog.DiscardHandler), room{dir: os.TempDir()}, Tuning{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.close() })
	rnd := rand.NewChaCha8([32]byte{1})
	ids := make([]chunk.ID, n)
	b := d.batch()
	for i := range ids {
		rnd.Read(ids[i][:])
		b.setLoc(pack.Chunk{ID: ids[i], Loc: pack.Loc{Pack: 3, Page: uint32(i), Stored: 4096, Raw: 8192, Codec: chunk.S2, CRC: rand.Uint32()}})
	}
	if err := b.flush(); err != nil {
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
		got, err := d.locs(want)
		if err != nil || len(got) != len(want) {
			t.Fatalf("%d chunks: %d locations, %v", len(want), len(got), err)
		}
		for i, id := range want {
			loc, err := d.loc(id)
			if err != nil && !errors.Is(err, errMissing) {
				t.Fatal(err)
			}
			if got[i] != loc {
				t.Fatalf("chunk %d of %d is at %+v, not %+v", i, len(want), got[i], loc)
			}
		}
	}
}

// A file that knows where its chunks are finds them where they have been stored anew.
func TestLocatedBeforeDamage(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	content := memory(9, 6<<20)
	write(t, s, "c", map[string][]byte{"pages-1.img": content})
	f := openFile(t, s, "c", "pages-1.img")
	f.Locate(0, f.Size(), nil)
	read := func() error {
		got := make([]byte, len(content))
		_, err := f.ReadInto(got, 0)
		if err == nil && !bytes.Equal(got, content) {
			t.Fatal("the content is another")
		}
		return err
	}
	if err := read(); err != nil {
		t.Fatal(err)
	}
	packs, err := s.packs.Packs()
	if err != nil || len(packs) == 0 {
		t.Fatalf("packs: %v, %v", packs, err)
	}
	flip(t, s.packs.PackPath(packs[0]), 100)
	if err := read(); ClassOf(err) != Corrupt {
		t.Fatalf("a damaged chunk is read: %v", err)
	}
	write(t, s, "again", map[string][]byte{"pages-1.img": content})
	if err := read(); err != nil {
		t.Fatalf("after its content was stored anew: %v", err)
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
				if _, err := d.loc(ids[i%segment]); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/AtOnce", func(b *testing.B) {
			for n := 0; n < b.N; n += segment {
				if _, err := d.locs(ids); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
