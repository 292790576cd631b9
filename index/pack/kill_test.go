package pack

import (
	"testing"

	"github.com/gpucr/gpucr-fs/index/storage"
)

// TestNamesThatAKilledProcessLeft: a process is killed when it has begun a pack, or has written a journal anew, and the
// disk does not have their names yet. The next process builds on these files, and then the power goes. What it
// committed is there.
func TestNamesThatAKilledProcessLeft(t *testing.T) {
	m, syncs := storage.NewMem(memDir), 0
	var images [2]*storage.Image // before the names of the new pack are synced, and that of its new journal
	s := openOn(t, &storage.Faulty{Storage: m, Rule: func(c storage.Call) storage.Fault {
		if c.Op == storage.OpSyncDir {
			images[syncs] = m.Snapshot()
			syncs++
		}
		return storage.Fault{}
	}})
	first, err := appendTo(s, content(1, 9000))
	if err == nil {
		_, err = s.Commit(nil)
	}
	if err == nil {
		_, err = s.RewriteJournal(1, []Chunk{first}, nil)
	}
	if err != nil || syncs != len(images) {
		t.Fatalf("%d syncs, %v", syncs, err)
	}

	t.Run("begun", func(t *testing.T) {
		m := images[0].Now()
		s := openOn(t, m)
		end, err := s.JournalSize(1)
		if err != nil {
			t.Fatal(err)
		}
		if resumed, err := s.Resume(1, 0, end); err != nil || !resumed {
			t.Fatalf("resumed: %v, %v", resumed, err)
		}
		c, err := appendTo(s, content(2, 5000))
		if err == nil {
			_, err = s.Commit(nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		for seed := range uint64(100) {
			after := openOn(t, m.Snapshot().Crash(seed))
			if chunks, _ := held(t, after); len(chunks[c.ID]) == 0 || readable(after, chunks[c.ID]) != nil {
				t.Fatalf("seed %d: what was committed is lost", seed)
			}
		}
	})
	t.Run("written anew", func(t *testing.T) {
		m := images[1].Now()
		if _, err := openOn(t, m).Kill(1, []Chunk{first}); err != nil {
			t.Fatal(err)
		}
		for seed := range uint64(100) {
			if chunks, _ := held(t, openOn(t, m.Snapshot().Crash(seed))); len(chunks[first.ID]) > 0 {
				t.Fatalf("seed %d: a chunk that was journalled as dead is alive", seed)
			}
		}
	})
}
