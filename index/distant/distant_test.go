package distant

import (
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/tests/budget"
)

// journal is the keys that were committed, applied to an index as the store does it.
type journal struct {
	t   *testing.T
	dir string // of db
	db  *keys.DB
	d   *Packs
	seq uint64
}

func newJournal(t *testing.T) *journal {
	t.Helper()
	dir := t.TempDir()
	db, err := keys.Open(dir, slog.New(slog.DiscardHandler), keys.Room{Dir: dir}, keys.Tuning{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return &journal{t: t, dir: dir, db: db, d: New(db, slog.New(slog.DiscardHandler), nil)}
}

func (j *journal) commit(puts []keys.Put) error {
	b := j.db.Batch()
	for _, p := range puts {
		j.seq++
		kv := pack.KV{Seq: j.seq, Key: p.Key, Value: p.Payload, Delete: p.Payload == nil}
		j.d.Index(b, []pack.KV{kv})
		if kv.Delete {
			b.DeleteMeta(kv.Key)
		} else {
			b.SetMeta(kv.Key, kv.Seq, kv.Value)
		}
	}
	return b.Flush()
}

// at gives a chunk at a page of the n-th pack of a list.
func at(id byte, n, page uint32) pack.Chunk {
	return pack.Chunk{ID: chunk.ID{id}, Loc: pack.Loc{Pack: n, Page: page, Stored: 100, Raw: 100}}
}

// where gives the object and page where a chunk is known to be, "" when nothing is known.
func (j *journal) where(id byte) (object.Name, uint32) {
	j.t.Helper()
	loc, err := j.db.DistantLoc(chunk.ID{id})
	if errors.Is(err, keys.ErrMissing) {
		return object.Name{}, 0
	}
	p, ok := j.d.Pack(loc.Pack)
	if err != nil || !ok {
		j.t.Fatalf("chunk %d lies in pack %d, %v, %v", id, loc.Pack, ok, err)
	}
	return p.Name, loc.Page
}

// TestLearn learns of two packs, and of one of them again with other chunks; all of that is known after it was loaded
// anew.
func TestLearn(t *testing.T) {
	j := newJournal(t)
	a, b := object.PackRef{Name: object.Name{1}, Size: 1 << 20}, object.PackRef{Name: object.Name{2}, Size: 1 << 20}
	check := func(id byte, name object.Name, page uint32) {
		t.Helper()
		if n, p := j.where(id); n != name || p != page {
			t.Errorf("chunk %d lies in %v at %d, not in %v at %d", id, n, p, name, page)
		}
	}
	for _, step := range []error{
		j.d.Learn([]object.PackRef{a, b}, []pack.Chunk{at(1, 1, 0), at(2, 1, 1), at(3, 2, 0)}, j.commit),
		j.d.Learn([]object.PackRef{a}, []pack.Chunk{at(2, 1, 1), at(4, 1, 7)}, j.commit),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	again := func() {
		j.d = New(j.db, slog.New(slog.DiscardHandler), nil)
		if err := j.d.Load(); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		check(1, a.Name, 0)
		check(2, a.Name, 1)
		check(3, b.Name, 0)
		check(4, a.Name, 7)
		again()
	}
	seq := j.seq
	if err := j.d.Learn([]object.PackRef{a}, []pack.Chunk{at(4, 1, 7)}, j.commit); err != nil || j.seq != seq {
		t.Errorf("what is known is written again: %v", err)
	}
	// What is said of a place last counts.
	if err := j.d.Learn([]object.PackRef{a}, []pack.Chunk{at(5, 1, 7)}, j.commit); err != nil {
		t.Fatal(err)
	}
	check(5, a.Name, 7)
}

// TestElsewhere knows chunks in two packs: where one does not give them they are looked for in the other, and no
// place is tried in turns for ever.
func TestElsewhere(t *testing.T) {
	j := newJournal(t)
	a, b := object.PackRef{Name: object.Name{1}, Size: 1 << 20}, object.PackRef{Name: object.Name{2}, Size: 1 << 20}
	err := j.d.Learn([]object.PackRef{a, b}, []pack.Chunk{at(1, 1, 0), at(2, 1, 1), at(1, 2, 5), at(3, 2, 6)}, j.commit)
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := j.where(1); n != b.Name {
		t.Fatalf("chunk 1 lies in %v", n)
	}
	for i := range 2 {
		if looked, err := j.d.Elsewhere(pack.FirstDistant + 1); err != nil || looked != (i == 0) {
			t.Errorf("looked: %v, %v", looked, err)
		}
		if n, page := j.where(1); n != a.Name || page != 0 {
			t.Errorf("chunk 1 lies in %v at %d", n, page)
		}
		if n, _ := j.where(3); n != b.Name {
			t.Errorf("chunk 3, which is nowhere else, lies in %v", n)
		}
	}
	if looked, err := j.d.Elsewhere(pack.FirstDistant); err != nil || !looked {
		t.Errorf("looked: %v, %v", looked, err)
	}
	if n, _ := j.where(1); n != a.Name {
		t.Errorf("chunk 1 goes back to %v", n)
	}
}

// TestForget forgets packs that nothing needs: their chunks are known where another pack has them, their numbers are
// never given again, and what was learned of since somebody looked stays.
func TestForget(t *testing.T) {
	j := newJournal(t)
	ref := func(n byte) object.PackRef { return object.PackRef{Name: object.Name{n}, Size: 1 << 20} }
	learn := func(p object.PackRef, chunks ...pack.Chunk) {
		t.Helper()
		if err := j.d.Learn([]object.PackRef{p}, chunks, j.commit); err != nil {
			t.Fatal(err)
		}
	}
	learn(ref(1), at(1, 1, 0), at(2, 1, 1))
	learn(ref(2), at(1, 1, 5), at(3, 1, 6)) // chunk 1 is found here
	learn(ref(3), at(4, 1, 0))
	forget := func(stands ...byte) int {
		t.Helper()
		n, err := j.d.Forget(func(n uint32) bool { return n == pack.FirstDistant+2 },
			func(p object.Name) bool { return slices.Contains(stands, p[0]) }, j.commit)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	release := j.d.Hold()
	learn(ref(4), at(5, 1, 0))
	learn(ref(2), at(1, 1, 5)) // no news, and yet somebody is about to need it
	if n := forget(1); n != 0 {
		t.Errorf("%d packs are forgotten while somebody learns of them", n)
	}
	release()
	if n := forget(1, 4); n != 1 || j.d.Knows(ref(2).Name) || !j.d.Knows(ref(1).Name) || !j.d.Knows(ref(3).Name) {
		t.Errorf("%d packs are forgotten", n)
	}
	for range 2 {
		for id, want := range map[byte]byte{1: 1, 2: 1, 3: 0, 4: 3, 5: 4} {
			if n, _ := j.where(id); n != ref(want).Name && (want != 0 || n != object.Name{}) {
				t.Errorf("chunk %d lies in %v", id, n)
			}
		}
		j.d = New(j.db, slog.New(slog.DiscardHandler), nil)
		if err := j.d.Load(); err != nil {
			t.Fatal(err)
		}
	}
	if n := forget(1); n != 1 { // the newest
		t.Errorf("%d packs are forgotten", n)
	}
	j.d = New(j.db, slog.New(slog.DiscardHandler), nil)
	if err := j.d.Load(); err != nil {
		t.Fatal(err)
	}
	learn(ref(5), at(6, 1, 0))
	if loc, err := j.db.DistantLoc(chunk.ID{6}); err != nil || loc.Pack != pack.FirstDistant+4 {
		t.Errorf("a number is given again: %d, %v", loc.Pack, err)
	}
}

// TestForgottenAnew reads in one go, as when an index is built anew, what was learned and what was forgotten.
func TestForgottenAnew(t *testing.T) {
	j := newJournal(t)
	a, b := object.PackRef{Name: object.Name{1}, Size: 1 << 20}, object.PackRef{Name: object.Name{2}, Size: 1 << 20}
	batch := j.db.Batch()
	for i, kv := range []pack.KV{
		{Key: keyOf(pack.FirstDistant), Value: j.d.encode(a, []pack.Chunk{at(1, pack.FirstDistant, 3)})},
		{Key: keyOf(pack.FirstDistant + 1), Value: j.d.encode(b, []pack.Chunk{at(1, pack.FirstDistant+1, 4)})},
		{Key: keyOf(pack.FirstDistant + 1), Value: []byte{}},
	} {
		j.d.Index(batch, []pack.KV{kv})
		batch.SetMeta(kv.Key, uint64(i+1), kv.Value)
	}
	if err := errors.Join(batch.Flush(), j.d.Load()); err != nil {
		t.Fatal(err)
	}
	if n, page := j.where(1); n != a.Name || page != 3 {
		t.Errorf("the chunk lies in %v at %d", n, page)
	}
}

// TestLearnsNothingImpossible refuses chunks behind the end of their pack, and a pack without slots. A pack that has
// another length than before is taken at its last word.
func TestLearnsNothingImpossible(t *testing.T) {
	j := newJournal(t)
	p := object.PackRef{Name: object.Name{1}, Size: 8192}
	if err := j.d.Learn([]object.PackRef{p}, []pack.Chunk{at(1, 1, 2)}, j.commit); fault.ClassOf(err) != fault.Corrupt {
		t.Errorf("a chunk behind the end: %v", err)
	}
	if err := j.d.Learn([]object.PackRef{p}, []pack.Chunk{at(1, 1, 1)}, j.commit); err != nil {
		t.Fatal(err)
	}
	if err := j.d.Learn([]object.PackRef{{Name: object.Name{3}}}, nil, j.commit); fault.ClassOf(err) != fault.Corrupt {
		t.Errorf("no slots: %v", err)
	}
	p.Size++
	if err := j.d.Learn([]object.PackRef{p}, []pack.Chunk{at(1, 1, 0)}, j.commit); err != nil {
		t.Errorf("another length: %v", err)
	}
	if n, page := j.where(1); n != p.Name || page != 0 {
		t.Errorf("afterwards the chunk lies in %v at %d", n, page)
	}
}

func FuzzDecode(f *testing.F) {
	c := at(1, pack.FirstDistant, 0)
	d := New(nil, nil, nil)
	f.Add(d.encode(object.PackRef{Size: 1 << 20}, []pack.Chunk{c, c}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		defer budget.Watch(t, len(b))()
		var list []pack.Chunk
		p, err := d.decode(pack.FirstDistant, b, func(c pack.Chunk) { list = append(list, c) })
		if err == nil && string(d.encode(p, list)) != string(b) {
			t.Error("what was read is written in another way")
		}
	})
}
