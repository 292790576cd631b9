package distant

import (
	"errors"
	"log/slog"
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
	return &journal{t: t, db: db, d: New(db, slog.New(slog.DiscardHandler))}
}

func (j *journal) commit(puts []Put) error {
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

// TestLearn learns of two packs, of one of them again with other chunks, and forgets it; all of that is known to who
// loads it anew.
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
		j.d = New(j.db, slog.New(slog.DiscardHandler))
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
	if err := j.d.Forget([]object.Name{a.Name, {9}}, j.commit); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		check(1, object.Name{}, 0)
		check(4, object.Name{}, 0)
		check(3, b.Name, 0)
		again()
	}
	// Its number is given to no other.
	if err := j.d.Learn([]object.PackRef{a}, []pack.Chunk{at(1, 1, 5)}, j.commit); err != nil {
		t.Fatal(err)
	}
	check(1, a.Name, 5)
	check(3, b.Name, 0)
	if p, ok := j.d.Pack(pack.FirstDistant); ok {
		t.Errorf("the first number is %v's again", p.Name)
	}
}

// TestLearnsNothingImpossible refuses chunks behind the end of their pack, a pack that has another length than before,
// and one without slots.
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
	if err := j.d.Learn([]object.PackRef{p}, []pack.Chunk{at(1, 1, 0)}, j.commit); fault.ClassOf(err) != fault.Corrupt {
		t.Errorf("another length: %v", err)
	}
	if n, page := j.where(1); n != p.Name || page != 1 {
		t.Errorf("afterwards the chunk lies in %v at %d", n, page)
	}
}

func FuzzDecode(f *testing.F) {
	c := at(1, pack.FirstDistant, 0)
	f.Add(encode(object.PackRef{Size: 1 << 20}, []pack.Chunk{c, c}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		defer budget.Watch(t, len(b))()
		var list []pack.Chunk
		p, err := decode(pack.FirstDistant, b, func(c pack.Chunk) { list = append(list, c) })
		if err == nil && string(encode(p, list)) != string(b) {
			t.Error("what was read is written in another way")
		}
	})
}
