package pack

import (
	"strings"
	"sync/atomic"
	"testing"

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
