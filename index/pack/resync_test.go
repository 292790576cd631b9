package pack

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// TestSyncJournalAfterAFailedSync: what can be read of a journal after a sync that failed, and was never made good, is
// durable once SyncJournal has said so. A sync alone would do nothing: the kernel calls those pages clean.
func TestSyncJournalAfterAFailedSync(t *testing.T) {
	readable := 0
	for seed := range uint64(20) {
		m := storage.NewMem(memDir)
		var broken atomic.Bool
		s := openOn(t, &storage.Faulty{Storage: m, Rule: func(c storage.Call) storage.Fault {
			switch {
			case !broken.Load():
			case c.Op == storage.OpSync && strings.HasSuffix(c.Name, ".journal"):
				return storage.Fault{Kind: storage.Drop, Seed: seed}
			case c.Op == storage.OpCreate:
				return storage.Fault{Kind: storage.Fail} // it can't be written anew either
			}
			return storage.Fault{}
		}})
		if _, err := appendTo(s, content(1, 5000)); err != nil {
			t.Fatal(err)
		}
		done, err := s.Commit(nil)
		if err != nil {
			t.Fatal(err)
		}
		mark := done.Marks[1]
		c, err := appendTo(s, content(2, 5000))
		if err != nil {
			t.Fatal(err)
		}
		broken.Store(true)
		if _, err := s.Commit(nil); err == nil {
			t.Fatal("a failed sync was committed")
		}
		s.Close()

		s = openOn(t, m)
		tells := func(s *Set) (id chunk.ID, end int64) {
			end, bad, err := s.Read(1, mark, func(r Record) error {
				if r.Chunk != nil {
					id = r.Chunk.ID
				}
				return nil
			})
			if len(bad) > 0 && bad[0].Off != end || err != nil {
				t.Fatalf("seed %d: %+v, %v", seed, bad, err)
			}
			return id, end
		}
		id, end := tells(s)
		if id == c.ID {
			readable++
		}
		if err := s.SyncJournal(1, mark, end); err != nil {
			t.Fatal(err)
		}
		after, afterEnd := tells(openOn(t, m.Snapshot().Crash(seed)))
		if after != id || afterEnd < end {
			t.Errorf("seed %d: up to %d could be read before the crash, up to %d after it", seed, end, afterEnd)
		}
	}
	if readable == 0 {
		t.Error("no failed commit could be read")
	}
}

// TestFullDiskTellsNoMoreLater: what a full disk took of frames that it refused is either seen by the next who opens
// the set, or by nobody: a power cut does not bring it forth.
func TestFullDiskTellsNoMoreLater(t *testing.T) {
	for _, kind := range []storage.FaultKind{storage.Fail, storage.Late, storage.Short} {
		for seed := range uint64(30) {
			m := storage.NewMem(memDir)
			var full, broken atomic.Bool
			s := openOn(t, &storage.Faulty{Storage: m, Rule: func(c storage.Call) storage.Fault {
				if broken.Load() && (c.Op == storage.OpSync || c.Op == storage.OpCreate) {
					return storage.Fault{Kind: storage.Fail}
				}
				if full.Load() && c.Op == storage.OpWrite && strings.Contains(c.Name, ".journal") {
					return storage.Fault{Kind: kind, Err: unix.ENOSPC, Seed: seed}
				}
				return storage.Fault{}
			}})
			c, err := appendTo(s, content(1, 5000))
			if err != nil {
				t.Fatal(err)
			}
			done, err := s.Commit(nil)
			if err != nil {
				t.Fatal(err)
			}
			mark := done.Marks[1]
			full.Store(true)
			for range 2 { // the second finds what the first has left
				if _, err := s.Kill(1, []Chunk{c}); !errors.Is(err, ErrNoSpace) || s.Condemned(1) {
					t.Fatalf("on a full disk: %v, condemned %v", err, s.Condemned(1))
				}
			}
			if chunks, _ := held(t, s); len(chunks) != 1 {
				t.Fatal("a chunk that could not be killed is dead")
			}
			if seed%3 == 1 { // what was refused is cut off, and the disk does not say that it is gone
				full.Store(false)
				broken.Store(true)
				if _, err := s.Kill(1, []Chunk{c}); err == nil || !s.Condemned(1) {
					t.Fatalf("on a broken disk: %v, condemned %v", err, s.Condemned(1))
				}
				broken.Store(false)
			}
			if seed%2 == 0 && seed%3 != 1 { // the next frames are written while the set is open
				full.Store(false)
				if _, err := s.Commit([]KV{{Seq: 1, Key: "k", Value: []byte("v")}}); err != nil {
					t.Fatal(err)
				}
			}
			s.Close()

			s = openOn(t, m)
			end, _, err := s.Read(1, mark, func(Record) error { return nil })
			if err == nil && end > mark {
				err = s.SyncJournal(1, mark, end)
			}
			if err != nil {
				t.Fatal(err)
			}
			before, keys := held(t, s)
			after, keysAfter := held(t, openOn(t, m.Snapshot().Crash(seed)))
			if !maps.EqualFunc(before, after, slices.Equal) || !maps.Equal(keys, keysAfter) {
				t.Errorf("fault %d, seed %d: %v and %v before the power cut, %v and %v after it",
					kind, seed, before, keys, after, keysAfter)
			}
			if seed%2 == 0 && seed%3 != 1 && (len(after) != 1 || keysAfter["k"] != 1) {
				t.Errorf("fault %d, seed %d: what was committed after it: %v, %v", kind, seed, after, keysAfter)
			}
		}
	}
}
