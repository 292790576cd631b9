package pack

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

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

// TestOpenThatCannotSync: a set whose folder the disk does not sync is not opened, for nothing may build on its names.
func TestOpenThatCannotSync(t *testing.T) {
	o := options()
	o.Storage = &storage.Faulty{Storage: storage.NewMem(memDir), Rule: func(c storage.Call) storage.Fault {
		if c.Op == storage.OpSyncDir {
			return storage.Fault{Kind: storage.Fail}
		}
		return storage.Fault{}
	}}
	if _, err := Open(memDir, o); !errors.Is(err, unix.EIO) {
		t.Fatalf("%v, want EIO", err)
	}
}

// begun opens a set that holds a chunk.
func begun(t *testing.T, f *storage.Faulty) *Set {
	t.Helper()
	s := openOn(t, f)
	_, err := appendTo(s, content(1, 9000))
	if err == nil {
		_, err = s.Commit(nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestCutThatIsNotSynced: a full disk takes a frame and refuses the commit, and the process is killed when it has cut
// the frame off, or is about to, and the disk does not know. The next one gives back what no journal tells of, and the
// power goes. No journal may name what was given back.
func TestCutThatIsNotSynced(t *testing.T) {
	t.Run("has room", func(t *testing.T) { cutThatIsNotSynced(t, false) })
	t.Run("stays full", func(t *testing.T) { cutThatIsNotSynced(t, true) })
}

// cutThatIsNotSynced is TestCutThatIsNotSynced; with full, only a part of the frame can be written over.
func cutThatIsNotSynced(t *testing.T, full bool) {
	m := storage.NewMem(memDir)
	var images []*storage.Image
	writes := 0 // of the journal
	f := &storage.Faulty{Storage: m, Rule: pass}
	s := begun(t, f)
	gone, err := appendTo(s, content(2, 5000))
	if err != nil {
		t.Fatal(err)
	}
	f.Rule = func(c storage.Call) storage.Fault {
		if writes > 0 && c.Op.Changes() {
			images = append(images, m.Snapshot())
		}
		if c.Op != storage.OpWrite || c.Name != s.JournalPath(1) {
			return storage.Fault{}
		}
		switch writes++; {
		case writes == 1:
			return storage.Fault{Kind: storage.Late, Err: unix.ENOSPC} // of many frames the first ones are whole
		case full && writes == 2:
			return storage.Fault{Kind: storage.Short, Err: unix.ENOSPC, Seed: 11}
		}
		return storage.Fault{}
	}
	if _, err := s.Commit([]KV{{Seq: 7, Key: "refused", Value: []byte("x")}}); err == nil || len(images) < 2 {
		t.Fatalf("%d calls after the refusal, %v", len(images), err)
	}
	for i, image := range images {
		m := image.Now()
		s := openOn(t, m)
		size, err := s.JournalSize(1)
		if err != nil {
			t.Fatal(err)
		}
		told := false
		end, _, err := s.Read(1, 0, func(r Record) error {
			told = told || r.Chunk != nil && r.Chunk.ID == gone.ID
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if told {
			continue // it is part of the journal, and stays
		}
		if end < size { // as package chunks does where bytes lie behind the mark
			s.EndAt(1, end)
			if err := s.SyncJournal(1, end, size); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Punch(1, []Range{{gone.Loc.Offset(), gone.Loc.Slot()}}); err != nil {
			t.Fatal(err)
		}
		for seed := range uint64(100) {
			after := openOn(t, m.Snapshot().Crash(seed))
			if chunks, _ := held(t, after); len(chunks[gone.ID]) > 0 {
				t.Fatalf("killed before call %d, seed %d: a journal names a chunk that was given back", i, seed)
			}
		}
	}
}

// TestNoFrameWithoutThoseBefore: a commit writes three frames, and the process is killed, or the power goes, at any
// moment of it, or while that is cut off which a full disk has taken. No frame is there without those before it: the
// last one has the root, and what it stands for comes first.
func TestNoFrameWithoutThoseBefore(t *testing.T) {
	order := []string{"first", "second", "third"}
	var kvs []KV
	for i, n := range []int{frameTarget, frameTarget, 100} {
		kvs = append(kvs, KV{Seq: 7, Key: order[i], Value: content(uint64(i), n)})
	}
	check := func(t *testing.T, s *Set) {
		t.Helper()
		_, keys := held(t, s)
		for i, key := range order {
			if keys[key] == 0 && len(keys) > i {
				t.Fatalf("%s is missing, and there is %v", key, keys)
			}
		}
	}
	for turn := range 7 {
		full, seeds := (turn+1)/2, uint64(4) // the frame that finds the disk full, 0 for none
		if full == 0 {
			seeds = 50
		}
		m, images, writes := storage.NewMem(memDir), []*storage.Image(nil), 0
		f := &storage.Faulty{Storage: m, Rule: pass}
		s := begun(t, f)
		f.Rule = func(c storage.Call) storage.Fault {
			if c.Op.Changes() {
				images = append(images, m.Snapshot())
			}
			if c.Op == storage.OpWrite && c.Name == s.JournalPath(1) {
				// In each second turn it stays full, and writing over what is to be cut off fails, too.
				if writes++; writes == full {
					return storage.Fault{Kind: storage.Late, Err: unix.ENOSPC}
				} else if full > 0 && writes > full && turn%2 == 1 {
					return storage.Fault{Kind: storage.Short, Err: unix.ENOSPC, Seed: uint64(writes)}
				}
			}
			return storage.Fault{}
		}
		if _, err := s.Commit(kvs); (err != nil) != (full > 0) {
			t.Fatalf("frame %d finds the disk full: %v", full, err)
		}
		check(t, s)
		for _, image := range images {
			check(t, openOn(t, image.Now()))
			for seed := range seeds {
				check(t, openOn(t, image.Crash(seed)))
			}
		}
	}
}
