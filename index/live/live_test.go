package live

import (
	"log/slog"
	"testing"

	"go.uber.org/goleak"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/pack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newSet(t *testing.T) *pack.Set {
	t.Helper()
	s, err := pack.Open(t.TempDir(), pack.Options{Store: [16]byte{1}, PackSize: 1 << 20, FreeFloor: 1,
		Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// put appends a chunk for each number.
func put(t *testing.T, s *pack.Set, numbers ...byte) (chunks []pack.Chunk) {
	t.Helper()
	for _, n := range numbers {
		content := make([]byte, 5000)
		content[0] = n
		c := pack.Chunk{ID: chunk.Sum(content)}
		var err error
		c.Loc, err = s.Append(c.ID, content, len(content), chunk.Raw)
		must(t, err)
		chunks = append(chunks, c)
	}
	return chunks
}

func TestHas(t *testing.T) {
	s := newSet(t)
	live := New(s)
	has := func(want bool, chunks ...pack.Chunk) {
		t.Helper()
		for i, c := range chunks {
			if live.Has(c.ID, c.Loc) != want {
				t.Errorf("chunk %d at %+v: %v", i, c.Loc, !want)
			}
		}
	}
	first := put(t, s, 1, 2, 3)
	has(false, first...) // in no journal yet
	_, err := s.Commit(nil)
	must(t, err)
	has(true, first...)
	later := put(t, s, 4, 5)
	has(false, later...)
	_, err = s.Commit(nil)
	must(t, err)
	has(true, later...)
	has(true, first...)

	// Another chunk's slot, another place, another form of the same chunk, another pack.
	has(false, pack.Chunk{ID: first[0].ID, Loc: first[1].Loc})
	for _, change := range []func(*pack.Loc){
		func(l *pack.Loc) { l.Page++ }, func(l *pack.Loc) { l.CRC++ }, func(l *pack.Loc) { l.Pack++ },
	} {
		c := first[0]
		change(&c.Loc)
		has(false, c)
	}

	_, err = s.Kill(first[0].Loc.Pack, first[:1])
	must(t, err)
	has(true, first[1:]...) // what is known of them is not forgotten
	live.Forget(first[0].Loc.Pack)
	has(false, first[0])
	has(true, first[1:]...)

	must(t, s.Roll())
	_, err = s.RewriteJournal(first[0].Loc.Pack, first[2:], nil)
	must(t, err)
	live.Forget(first[0].Loc.Pack)
	has(false, first[:2]...)
	has(false, later...)
	has(true, first[2])

	must(t, s.Drop(first[0].Loc.Pack))
	live.Forget(first[0].Loc.Pack)
	has(false, first...)
}

// What is kept has a bound.
func TestKept(t *testing.T) {
	s := newSet(t)
	live := New(s)
	live.max = 5
	var all []pack.Chunk
	for n := range byte(10) {
		all = append(all, put(t, s, 2*n, 2*n+1)...)
		_, err := s.Commit(nil)
		must(t, err)
		must(t, s.Roll())
	}
	for range 2 {
		for i, c := range all {
			if !live.Has(c.ID, c.Loc) {
				t.Errorf("chunk %d is not alive", i)
			}
			sum := 0
			for _, p := range live.of {
				sum += len(p.live)
			}
			if sum != live.kept || sum > live.max+1 {
				t.Fatalf("%d kept, %d counted", sum, live.kept)
			}
		}
	}
}
