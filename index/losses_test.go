package index

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// lostWhileBurying gives a store whose gc could not write the journal of the pack that a draft had just written files
// to, and that draft. The pack is given up. Calls succeed again.
func lostWhileBurying(t *testing.T) (s *Store, d *drafts.Draft, files map[string][]byte) {
	t.Helper()
	s, fail := faultyStore(t)
	write(t, s, "gone", map[string][]byte{"f": memory(1, 1<<20)})
	if err := s.Remove(t.Context(), []string{"gone"}); err != nil {
		t.Fatal(err)
	}
	files = map[string][]byte{"f": memory(2, 1<<20)}
	d = create(t, s, "draft", drafts.CreateOptions{})
	s.upkeep.Hooks.Found = func() { // behind the commit of gc, before it buries
		fill(t, d, files)
		settled(t, d)
		fail(".journal", ".new")
	}
	if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err == nil || !s.chunks.Packs.Condemned(1) {
		t.Fatalf("gc: %v", err)
	}
	s.upkeep.Hooks.Found = nil
	fail()
	return s, d, files
}

// TestLostWhileBurying: gc can't journal what is dead, and the pack is given up with what an open draft wrote there.
// The draft is not sealed with it, and who comes next finds a store that works.
func TestLostWhileBurying(t *testing.T) {
	s, d, files := lostWhileBurying(t)
	if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil {
		t.Errorf("the next gc: %v", err)
	}
	mustBeLost(t, s, d, files)
}

// TestLostIsStoredAnewAtOnce: a pack was given up with what waited for a commit there. The next dump of the same
// content is not built on it, and is sealed.
func TestLostIsStoredAnewAtOnce(t *testing.T) {
	s, d, files := lostWhileBurying(t)
	if err := d.Abort(); err != nil {
		t.Fatal(err)
	}
	write(t, s, "again", files)
	s = reopen(t, s)
	mustHold(t, s, "again", files)
	mustVerify(t, s, 0)
}

// TestLostWhileMovingKeys: gc moves keys out of a pack that goes, and the sync of what an open draft wrote fails.
func TestLostWhileMovingKeys(t *testing.T) {
	s, fail := faultyStore(t)
	write(t, s, "gone", map[string][]byte{"f": memory(1, 1<<20)})
	write(t, s, "stays", map[string][]byte{"f": []byte("small")})
	if err := s.chunks.Packs.Roll(); err != nil {
		t.Fatal(err)
	}
	write(t, s, "newer", map[string][]byte{"f": memory(3, 1<<20)})
	if err := s.Remove(t.Context(), []string{"gone"}); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"f": memory(2, 1<<20)}
	d := create(t, s, "draft", drafts.CreateOptions{})
	moved := false
	s.chunks.Hooks.Moving = func() {
		fill(t, d, files)
		settled(t, d)
		fail(".pack")
		moved = true
	}
	_, err := s.GC(t.Context(), upkeep.GCOptions{})
	s.chunks.Hooks.Moving = nil
	if err == nil || !moved {
		t.Fatalf("gc has moved keys: %v, %v", moved, err)
	}
	fail()
	s = mustBeLost(t, s, d, files)
	mustHold(t, s, "stays", map[string][]byte{"f": []byte("small")})
}

// TestSoundIsNotAlive: gc can't journal what is dead, so a journal may call it dead or not. Verify reads it and finds
// it sound: nothing is built on it all the same, for the next open may forget it.
func TestSoundIsNotAlive(t *testing.T) {
	s, fail := faultyStore(t)
	files := map[string][]byte{"f": memory(1, 1<<20)}
	write(t, s, "gone", files)
	if err := s.Remove(t.Context(), []string{"gone"}); err != nil {
		t.Fatal(err)
	}
	s.upkeep.Hooks.Found = func() { fail(".journal", ".new") }
	if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err == nil {
		t.Fatal("gc has not met the failure")
	}
	s.upkeep.Hooks.Found = nil
	fail()
	mustVerify(t, s, 0)
	write(t, s, "again", files)
	s = reopen(t, s)
	mustHold(t, s, "again", files)
	mustVerify(t, s, 0)
}

// TestListedTwiceIsNotLost: a commit that is tried again lists what it had listed again. When its pack goes, and half
// of that is done, a repair does not call dead chunks lost.
func TestListedTwiceIsNotLost(t *testing.T) {
	s, fail := faultyStore(t)
	write(t, s, "kept", map[string][]byte{"f": []byte("small")})
	d := create(t, s, "draft", CreateOptions{})
	fill(t, d, map[string][]byte{"f": memory(1, 1<<20)})
	settled(t, d)
	if err := s.chunks.Packs.Roll(); err != nil {
		t.Fatal(err)
	}
	fill(t, d, map[string][]byte{"g": memory(2, 1<<20)})
	settled(t, d)
	fail("2.journal", "2.journal.new")
	if err := s.chunks.Commit(nil); err == nil {
		t.Fatal("a commit did not notice that the sync failed")
	}
	fail()
	if err := errors.Join(s.chunks.Commit(nil), d.Abort()); err != nil {
		t.Fatal(err)
	}
	write(t, s, "newer", map[string][]byte{"f": memory(3, 1<<20)}) // begins a pack
	fail(chunks.PacksFolder)
	if _, err := s.GC(t.Context(), GCOptions{}); err == nil || s.chunks.Packs.Exists(1) {
		t.Fatalf("gc has not been kept from removing a journal: %v", err)
	}
	fail()
	dir := s.dir
	if err := errors.Join(s.Close(), os.RemoveAll(filepath.Join(dir, chunks.IndexFolder))); err != nil {
		t.Fatal(err)
	}
	if res, err := Repair(t.Context(), dir, s.o); err != nil || len(res.Lost) > 0 {
		t.Errorf("repair: %+v, %v", res, err)
	}
}

// mustBeLost: the draft is refused, and what it held is stored anew when it comes by again. It gives the store, opened
// again.
func mustBeLost(t *testing.T, s *Store, d *drafts.Draft, files map[string][]byte) *Store {
	t.Helper()
	if _, err := d.Seal(t.Context()); err == nil {
		t.Error("a draft was sealed whose chunks are lost")
	}
	if err := d.Abort(); err != nil {
		t.Error(err)
	}
	write(t, s, "again", files)
	s = reopen(t, s)
	mustHold(t, s, "again", files)
	mustVerify(t, s, 0)
	return s
}
