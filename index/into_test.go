package index

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/reading"
)

func TestReadInto(t *testing.T) {
	t.Run("plain", func(t *testing.T) { readsInto(t, newTestStore(t, testOptions(t))) })
	t.Run("encrypted", func(t *testing.T) { readsInto(t, openTestStore(t, newSecretStore(t), secretOptions(t))) })
}

// readsInto reads ranges of a file of the store, whole chunks and parts of them.
func readsInto(t *testing.T, s *Store) {
	content := memory(7, 24<<20+1234)
	write(t, s, "c", map[string][]byte{"pages-1.img": content, "small.img": []byte("few bytes")})
	c, err := s.Checkpoint("c")
	if err != nil {
		t.Fatal(err)
	}
	before := s.chunks.Arena.InUse() - s.reading.CacheBytes()
	for name, content := range map[string][]byte{"pages-1.img": content, "small.img": []byte("few bytes")} {
		f, err := c.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		rnd := rand.New(rand.NewPCG(3, 4))
		for range 300 {
			off := rnd.Int64N(int64(len(content)))
			n := 1 + rnd.IntN(3<<20)
			if rnd.IntN(2) == 0 {
				off, n = off&^4095, n&^4095+4096
			}
			p := make([]byte, n)
			rand.NewChaCha8([32]byte{}).Read(p[:min(n, 4096)])
			got, err := f.ReadInto(p, off)
			want := content[off:min(off+int64(n), int64(len(content)))]
			if got != len(want) || !bytes.Equal(p[:got], want) || (err != nil) != (len(want) < n) ||
				err != nil && err != io.EOF {
				t.Fatalf("%s: %d bytes at %d: got %d, %v", name, n, off, got, err)
			}
		}
	}
	if n := s.chunks.Arena.InUse() - s.reading.CacheBytes(); n != before {
		t.Errorf("%d bytes of buffers in use besides the cache, %d before", n, before)
	}
}

// Reading span by span brings each chunk once and leaves the cache alone.
func TestSpansAreReadOnce(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	content := memory(8, 24<<20)
	write(t, s, "c", map[string][]byte{"pages-1.img": content})
	f := openFile(t, s, "c", "pages-1.img")
	before := s.Stats()
	got := make([]byte, len(content))
	chunks := map[string]bool{}
	if err := f.Extents(0, f.Size(), func(x reading.Extent) bool {
		if !x.Zero {
			chunks[x.ID.String()] = true
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	spans := 0
	last := int64(0)
	if err := f.Spans(func(start, end int64) bool {
		if start < last || end <= start {
			t.Errorf("a span from %d to %d after one to %d", start, end, last)
		}
		last = end
		f.WillNeed(start, end-start)
		if _, err := f.ReadInto(got[start:end], start); err != nil {
			t.Error(err)
		}
		spans++
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, content) {
		t.Error("contents differ")
	}
	after := s.Stats()
	if n := after.Misses - before.Misses; n != int64(spans) || len(chunks) > spans {
		t.Errorf("%d chunks read for %d spans of %d chunks", n, spans, len(chunks))
	}
	if after.CacheBytes != before.CacheBytes {
		t.Errorf("%d bytes in the cache, %d before", after.CacheBytes, before.CacheBytes)
	}
}

// A part of a chunk that is stored as it is passes by the cache, unless it is asked for again; of a compressed one
// nothing is decoded twice.
func TestPartsOfChunks(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	raw, text := make([]byte, 64<<10), bytes.Repeat([]byte("compressible "), 5042)[:64<<10]
	rand.NewChaCha8([32]byte{1}).Read(raw)
	write(t, s, "c", map[string][]byte{"pages-1.img": raw, "pages-2.img": text})
	for name, c := range map[string]struct {
		content []byte
		fetched []int64 // chunks, by the first, second and third read
	}{"pages-1.img": {raw, []int64{1, 1, 0}}, "pages-2.img": {text, []int64{1, 0, 0}}} {
		f := openFile(t, s, "c", name)
		var chunk reading.Extent
		if err := f.Extents(0, f.Size(), func(x reading.Extent) bool { chunk = x; return false }); err != nil {
			t.Fatal(err)
		}
		for i, want := range c.fetched {
			off := min(int64(i)*4096, chunk.Len-4096)
			before := s.Stats()
			p := make([]byte, 4096)
			if _, err := f.ReadInto(p, off); err != nil || !bytes.Equal(p, c.content[off:off+4096]) {
				t.Fatalf("%s at %d: wrong, %v", name, off, err)
			}
			after := s.Stats()
			if n := after.Misses - before.Misses; n != want {
				t.Errorf("%s: read %d fetched %d chunks, not %d", name, i+1, n, want)
			}
			if kept := after.CacheBytes > 0; i == 0 && kept != (name == "pages-2.img") {
				t.Errorf("%s: %d bytes in the cache after the first read", name, after.CacheBytes)
			}
		}
		s.reading.DropCache()
	}
}

// A part of a raw chunk may find it compressed: it was damaged, and has been stored anew, since it was looked up.
func TestPartOfAChunkStoredAnew(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	text := make([]byte, 64<<10)
	for i := range text {
		text[i] = byte(i >> 12)
	}
	write(t, s, "c", map[string][]byte{"pages-1.img": text})
	f := openFile(t, s, "c", "pages-1.img")
	p := make([]byte, 4096)
	if err := f.ReadPart(p, 8192); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(p, text[8192:8192+len(p)]) {
		t.Error("wrong bytes")
	}
}

// A chunk that is damaged is an error, whichever way it is read.
func TestReadIntoFindsDamage(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	content := memory(9, 8<<20)
	write(t, s, "c", map[string][]byte{"pages-1.img": content})
	path := s.chunks.Packs.PackPath(1)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	f := openFile(t, s, "c", "pages-1.img")
	p := make([]byte, len(content))
	if _, err := f.ReadInto(p, 0); fault.ClassOf(err) != fault.Corrupt {
		t.Errorf("got %v", err)
	}
	bad := 0
	for off := int64(0); off < int64(len(content)); off += 4096 {
		n, err := f.ReadInto(p[:4096], off)
		switch {
		case err == nil && !bytes.Equal(p[:n], content[off:off+int64(n)]):
			t.Fatalf("wrong bytes at %d", off)
		case err != nil && !errors.Is(err, io.EOF):
			bad++
		}
	}
	if bad == 0 || bad > 256 {
		t.Errorf("%d pages are damaged", bad)
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
	packs, err := s.chunks.Packs.Packs()
	if err != nil || len(packs) == 0 {
		t.Fatalf("packs: %v, %v", packs, err)
	}
	flip(t, s.chunks.Packs.PackPath(packs[0]), 100)
	if err := read(); fault.ClassOf(err) != fault.Corrupt {
		t.Fatalf("a damaged chunk is read: %v", err)
	}
	write(t, s, "again", map[string][]byte{"pages-1.img": content})
	if err := read(); err != nil {
		t.Fatalf("after its content was stored anew: %v", err)
	}
}
