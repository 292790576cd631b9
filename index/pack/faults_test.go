package pack

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/storage"
)

const memDir = "/store/packs"

func pass(storage.Call) storage.Fault { return storage.Fault{} }

// openOn opens a set. Faults of the storage come once it is open.
func openOn(t testing.TB, st storage.Storage) *Set {
	t.Helper()
	if f, ok := st.(*storage.Faulty); ok {
		rule := f.Rule
		f.Rule = pass
		defer func() { f.Rule = rule }()
	}
	o := options()
	o.Storage = st
	s, err := Open(memDir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// failing fails the first count calls of one kind on files whose name ends so.
func failing(m *storage.Mem, op storage.Op, suffix string, kind storage.FaultKind, count int64) *storage.Faulty {
	var n atomic.Int64
	return &storage.Faulty{Storage: m, Rule: func(c storage.Call) storage.Fault {
		if c.Op == op && strings.HasSuffix(c.Name, suffix) && n.Add(1) <= count {
			return storage.Fault{Kind: kind, Seed: uint64(count)}
		}
		return storage.Fault{}
	}}
}

func content(seed uint64, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 7}).Read(b)
	return b
}

func appendTo(s *Set, b []byte) (Chunk, error) {
	id := chunk.Sum(b)
	loc, err := s.Append(id, bytes.Clone(b), len(b), chunk.Raw)
	return Chunk{id, loc}, err
}

// held gives what the journals of a set tell: chunks that are not dead, and keys with their highest sequence.
func held(t testing.TB, s *Set) (chunks map[chunk.ID][]Loc, keys map[string]uint64) {
	t.Helper()
	chunks, keys = map[chunk.ID][]Loc{}, map[string]uint64{}
	packs, err := s.Packs()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range packs {
		dead := map[uint32]bool{}
		var list []Chunk
		_, bad, err := s.Read(n, 0, func(r Record) error {
			switch {
			case r.Chunk != nil:
				list = append(list, *r.Chunk)
			case r.Dead != nil:
				dead[r.Dead.Loc.Page] = true
			case r.KV != nil:
				keys[r.KV.Key] = max(keys[r.KV.Key], r.KV.Seq)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(bad) > 1 {
			t.Errorf("journal %d is damaged in the middle: %+v", n, bad)
		}
		for _, c := range list {
			if !dead[c.Loc.Page] {
				chunks[c.ID] = append(chunks[c.ID], c.Loc)
			}
		}
	}
	return chunks, keys
}

func readable(s *Set, locs []Loc) (err error) {
	err = errors.New("no journal tells of it")
	for _, l := range locs {
		if err = s.ReadSlots([]Loc{l}, [][]byte{make([]byte, l.Slot())}, false)[0]; err == nil {
			return nil
		}
	}
	return err
}

// TestFailedSyncOfAPack: what it covered is lost and not journalled, whatever the next sync says; the next chunks go to
// another pack.
func TestFailedSyncOfAPack(t *testing.T) {
	m := storage.NewMem(memDir)
	s := openOn(t, failing(m, storage.OpSync, ".pack", storage.Drop, 1))
	b := content(1, 9000)
	c, err := appendTo(s, b)
	if err != nil {
		t.Fatal(err)
	}
	done, err := s.Commit(nil)
	if err == nil || len(done.Lost) != 1 || done.Lost[0] != c || !s.Condemned(1) {
		t.Fatalf("commit: %+v, %v", done, err)
	}
	if done, err = s.Commit(nil); err != nil || len(done.Chunks) > 0 {
		t.Errorf("what was lost is committed: %+v, %v", done, err)
	}
	again, err := appendTo(s, b)
	if err != nil || again.Loc.Pack != 2 {
		t.Fatalf("stored anew at %+v, %v", again.Loc, err)
	}
	if _, err := s.Commit(nil); err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(20) {
		after := openOn(t, m.Snapshot().Crash(seed))
		chunks, _ := held(t, after)
		if locs := chunks[c.ID]; len(locs) != 1 || locs[0] != again.Loc || readable(after, locs) != nil {
			t.Errorf("after a crash: %+v", locs)
		}
	}
}

// TestFailedSyncOfAJournal: the journal is written anew as a whole; where that fails too its pack is condemned and the
// commit fails.
func TestFailedSyncOfAJournal(t *testing.T) {
	for _, both := range []bool{false, true} {
		m := storage.NewMem(memDir)
		var broken atomic.Bool
		s := openOn(t, &storage.Faulty{Storage: m, Rule: func(c storage.Call) storage.Fault {
			if c.Op == storage.OpSync && broken.Load() &&
				(strings.HasSuffix(c.Name, ".journal") || both && strings.HasSuffix(c.Name, ".new")) {
				return storage.Fault{Kind: storage.Drop, Seed: 1}
			}
			return storage.Fault{}
		}})
		first, err := appendTo(s, content(1, 5000))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit([]KV{{Seq: 1, Key: "a"}}); err != nil {
			t.Fatal(err)
		}
		broken.Store(true)
		second, err := appendTo(s, content(2, 5000))
		if err != nil {
			t.Fatal(err)
		}
		done, err := s.Commit([]KV{{Seq: 2, Key: "b"}})
		if both != (err != nil) || both != (len(done.Lost) == 1) || both != s.Condemned(1) {
			t.Fatalf("commit: %+v, %v", done, err)
		}
		broken.Store(false)
		third, err := appendTo(s, content(3, 5000))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit([]KV{{Seq: 3, Key: "c"}}); err != nil || third.Loc.Pack == 1 == both {
			t.Fatalf("the next commit: %+v, %v", third.Loc, err)
		}
		if _, err := s.Kill(1, []Chunk{first}); both != (err != nil) {
			t.Errorf("a frame for the journal: %v", err)
		}
		for seed := range uint64(20) {
			after := openOn(t, m.Snapshot().Crash(seed))
			chunks, keys := held(t, after)
			must := []Chunk{third}
			if !both {
				must = append(must, second)
			}
			for _, c := range must {
				if err := readable(after, chunks[c.ID]); err != nil {
					t.Errorf("both %v, crash %d: %v", both, seed, err)
				}
			}
			if keys["a"] != 1 || keys["c"] != 3 || !both && keys["b"] != 2 {
				t.Errorf("both %v, crash %d: keys %v", both, seed, keys)
			}
		}
	}
}

// TestFailedBeginOfAPack: its number is used up, and the next attempt works.
func TestFailedBeginOfAPack(t *testing.T) {
	for _, op := range []storage.Op{storage.OpSyncDir, storage.OpCreate, storage.OpSync, storage.OpWrite} {
		s := openOn(t, failing(storage.NewMem(memDir), op, "", storage.Late, 1))
		if _, err := appendTo(s, content(1, 5000)); err == nil {
			t.Errorf("%s: it worked", op)
		}
		c, err := appendTo(s, content(1, 5000))
		if err == nil {
			_, err = s.Commit(nil)
		}
		if err != nil || c.Loc.Pack < 2 {
			t.Errorf("%s: %+v, %v", op, c.Loc, err)
		}
	}
}

// TestOneFault runs a program with one fault at each call that changes something, goes on, and crashes at the end: what
// was acknowledged is there.
func TestOneFault(t *testing.T) {
	kinds := map[string]storage.FaultKind{"fail": storage.Fail, "late": storage.Late, "short": storage.Short,
		"drop": storage.Drop}
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			for at := int64(1); ; at++ {
				m := storage.NewMem(memDir)
				var calls atomic.Int64
				var hit string
				s := openOn(t, &storage.Faulty{Storage: m, Rule: func(c storage.Call) storage.Fault {
					if c.Op.Changes() && calls.Add(1) == at {
						hit = fmt.Sprint(c.Op, " ", c.Name)
						return storage.Fault{Kind: kind, Seed: uint64(at)}
					}
					return storage.Fault{}
				}})
				p := program{s: s, chunks: map[chunk.ID]Chunk{}, keys: map[string]uint64{}}
				p.run(uint64(at))
				for seed := range uint64(4) {
					after := openOn(t, m.Snapshot().Crash(seed))
					chunks, keys := held(t, after)
					for id, c := range p.chunks {
						if err := readable(after, chunks[id]); err != nil {
							t.Fatalf("fault %d (%s), crash %d: chunk of pack %d at page %d: %v", at, hit, seed,
								c.Loc.Pack, c.Loc.Page, err)
						}
					}
					for _, locs := range chunks {
						for _, l := range locs {
							if err := readable(after, []Loc{l}); err != nil {
								t.Fatalf("fault %d (%s), crash %d: a journal tells of pack %d, page %d: %v", at, hit,
									seed, l.Pack, l.Page, err)
							}
						}
					}
					for k, seq := range p.keys {
						if keys[k] != seq {
							t.Fatalf("fault %d (%s), crash %d: key %s has sequence %d, want %d", at, hit, seed, k,
								keys[k], seq)
						}
					}
				}
				if hit == "" {
					t.Logf("%d calls failed in turn", at-1)
					return
				}
			}
		})
	}
}

// program is a run over a set and what was acknowledged.
type program struct {
	s      *Set
	chunks map[chunk.ID]Chunk
	keys   map[string]uint64
	seq    uint64
}

func (p *program) run(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range uint64(14) {
		var fresh []Chunk
		for k := range 1 + r.Uint64N(3) {
			if c, err := appendTo(p.s, content(100*i+k, 1+r.IntN(20000))); err == nil {
				fresh = append(fresh, c)
			}
		}
		key := fmt.Sprint("k", i)
		p.commit(fresh, []string{key})
		switch i {
		case 3, 6, 9:
			_ = p.s.Roll() // a fault: the pack goes on
		case 10:
			p.collect(1, 2)
		case 12:
			p.collect(2, 1)
		}
	}
}

func (p *program) commit(fresh []Chunk, keys []string) {
	var kvs []KV
	for _, k := range keys {
		p.seq++
		kvs = append(kvs, KV{Seq: p.seq, Key: k, Value: []byte(k)})
	}
	if _, err := p.s.Commit(kvs); err != nil {
		if _, err := p.s.Commit(kvs); err != nil {
			return
		}
		fresh = nil // some may have been lost
	}
	for _, c := range fresh {
		p.chunks[c.ID] = c
	}
	for _, kv := range kvs {
		p.keys[kv.Key] = kv.Seq
	}
}

// collect gives back one of every few chunks of a pack, as a garbage collection does: dead, then punched, then a
// shorter journal; or the whole pack.
func (p *program) collect(n uint32, every int) {
	var dead, live []Chunk
	var keys []KV
	i := 0
	if _, _, err := p.s.Read(n, 0, func(r Record) error {
		switch {
		case r.Chunk != nil && i%every == 0:
			i++
			dead = append(dead, *r.Chunk)
		case r.Chunk != nil:
			i++
			live = append(live, *r.Chunk)
		case r.KV != nil:
			keys = append(keys, KV{Seq: r.KV.Seq, Key: r.KV.Key, Value: bytes.Clone(r.KV.Value)})
		}
		return nil
	}); err != nil {
		return
	}
	for _, c := range dead {
		if p.chunks[c.ID] == c {
			delete(p.chunks, c.ID)
		}
	}
	if _, err := p.s.Kill(n, dead); err != nil {
		return
	}
	for _, c := range dead {
		_ = p.s.Punch(n, []Range{{c.Loc.Offset(), c.Loc.Slot()}}) // a fault: it stays
	}
	if len(live) > 0 {
		_, _ = p.s.RewriteJournal(n, live, keys)
		return
	}
	if _, err := p.s.Commit(keys); err == nil {
		_ = p.s.Drop(n) // a fault: what is left is dropped by the next collection
	}
}

// TestCommitAfterActiveIsCondemned: what an older pack has got is committed though the pack that took appends is given
// up, and no other has been begun.
func TestCommitAfterActiveIsCondemned(t *testing.T) {
	s := openOn(t, failing(storage.NewMem(memDir), storage.OpSync, Name(2), storage.Fail, 1))
	for i := range uint64(3) {
		if _, err := appendTo(s, content(i, 512<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Commit(nil); err == nil {
		t.Fatal("a failed sync was committed")
	}
	done, err := s.Commit(nil)
	if err != nil || len(done.Chunks) != 2 {
		t.Fatalf("committed %d chunks: %v", len(done.Chunks), err)
	}
}

// TestBeginningAPackFailsOnce: what a failure leaves of a pack that could not be begun is not in the way of the next.
func TestBeginningAPackFailsOnce(t *testing.T) {
	for _, op := range []storage.Op{storage.OpCreate, storage.OpSyncDir, storage.OpWrite, storage.OpSync} {
		suffix := ".journal"
		if op == storage.OpSyncDir {
			suffix = "packs"
		}
		s := openOn(t, failing(storage.NewMem(memDir), op, suffix, storage.Late, 1))
		if _, err := appendTo(s, content(1, 100)); err == nil {
			t.Fatalf("%s: no error", op)
		}
		if _, err := appendTo(s, content(1, 100)); err != nil {
			t.Errorf("%s: the next append: %v", op, err)
		}
	}
}

// TestHeadOfAJournal: of a pack that could not be begun, nor removed again, nothing is called damaged.
func TestHeadOfAJournal(t *testing.T) {
	m := storage.NewMem(memDir)
	var broken atomic.Bool
	s := openOn(t, &storage.Faulty{Storage: m, Rule: func(c storage.Call) storage.Fault {
		switch {
		case broken.Load() && c.Op == storage.OpWrite && strings.HasSuffix(c.Name, ".journal"):
			return storage.Fault{Kind: storage.Short, Seed: 5}
		case broken.Load() && c.Op == storage.OpRemove:
			return storage.Fault{Kind: storage.Fail}
		}
		return storage.Fault{}
	}})
	broken.Store(true)
	if _, err := appendTo(s, content(1, 5000)); err == nil {
		t.Fatal("a pack without a journal takes a chunk")
	}
	broken.Store(false)
	if st, err := m.Stat(s.JournalPath(1)); err != nil || st.Size == 0 {
		t.Fatalf("no part of the journal was written: %+v, %v", st, err)
	}
	end, bad, err := s.Read(1, 0, func(Record) error { return nil })
	if end != 0 || len(bad) > 0 || err != nil {
		t.Errorf("its journal is read up to %d, with damage %+v, %v", end, bad, err)
	}
	if c, err := appendTo(s, content(2, 5000)); err != nil || c.Loc.Pack != 2 {
		t.Errorf("the next chunk: %+v, %v", c, err)
	}
}
