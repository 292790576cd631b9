package index

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/storage"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// faultyStore makes a store whose packs fail the syncs of files and folders whose names end in one of what it is told.
func faultyStore(t *testing.T) (s *Store, fail func(suffixes ...string)) {
	var which atomic.Pointer[[]string]
	fail = func(suffixes ...string) { which.Store(&suffixes) }
	fail()
	o := testOptions(t)
	o.Storage = &storage.Faulty{Storage: storage.Disk{}, Rule: func(c storage.Call) storage.Fault {
		for _, suffix := range *which.Load() {
			if sync := c.Op == storage.OpSync || c.Op == storage.OpSyncDir; sync && strings.HasSuffix(c.Name, suffix) {
				return storage.Fault{Kind: storage.Late}
			}
		}
		return storage.Fault{}
	}}
	return newTestStore(t, o), fail
}

// TestLostChunksAreNotSealed lets a sync of a pack fail while a draft is written: it cannot be sealed, whatever later
// syncs say, and the same content is stored anew.
func TestLostChunksAreNotSealed(t *testing.T) {
	t.Parallel()
	s, fail := faultyStore(t)
	files := map[string][]byte{"pages-1.img": memory(1, 6<<20)}
	kept := map[string][]byte{"pages-1.img": memory(2, 6<<20)}
	write(t, s, "kept", kept)
	d, err := s.Create(t.Context(), "lost", drafts.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, d, files)
	fail(".pack")
	if err := s.chunks.Commit(nil); err == nil {
		t.Fatal("a commit did not notice that the sync failed")
	}
	fail()
	if err := d.Flush(); err == nil || !strings.Contains(err.Error(), "did not keep") {
		t.Errorf("flush: %v", err) // whoever gives up its copy then would lose it
	}
	// A draft that began before and does not need what was lost is not concerned.
	for range 2 {
		_, err := d.Seal(t.Context())
		if err == nil || !strings.Contains(err.Error(), "did not keep") ||
			!strings.Contains(err.Error(), "input/output error") || fault.HintOf(err) == "" {
			t.Fatalf("seal: %v (hint %q)", err, fault.HintOf(err))
		}
	}
	if err := d.Abort(); err != nil {
		t.Fatal(err)
	}
	write(t, s, "again", files)
	mustHold(t, s, "again", files)
	mustHold(t, s, "kept", kept)
	mustVerify(t, s, 0)
	if res, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil || len(res.Kept) != 1 {
		t.Errorf("gc: %+v, %v", res, err)
	}
	s = reopen(t, s)
	mustHold(t, s, "again", files)
	mustHold(t, s, "kept", kept)
	mustVerify(t, s, 0)
	if res, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil || len(res.Kept) > 0 {
		t.Errorf("gc after opening again: %+v, %v", res, err)
	}
	mustVerify(t, s, 0)
	if names, _ := s.Names(t.Context()); len(names) != 2 {
		t.Errorf("left: %+v", names)
	}
}

// TestDraftsWithoutLostChunksAreSealed: chunks that were lost and came by again, or belong to others, keep nobody from
// sealing.
func TestDraftsWithoutLostChunksAreSealed(t *testing.T) {
	s, fail := faultyStore(t)
	files := map[string][]byte{"pages-1.img": memory(1, 3<<20)}
	a, err := s.Create(t.Context(), "a", drafts.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Create(t.Context(), "b", drafts.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, a, files)
	fail(".pack")
	if err := s.chunks.Commit(nil); err == nil {
		t.Fatal("a commit did not notice that the sync failed")
	}
	fail()
	other := map[string][]byte{"pages-1.img": memory(2, 3<<20)}
	fill(t, b, other)
	if _, err := b.Seal(t.Context()); err != nil {
		t.Errorf("seal of one that lost nothing: %v", err)
	}
	write(t, s, "c", files)
	if _, err := a.Seal(t.Context()); err != nil {
		t.Errorf("seal of one whose chunks were stored anew: %v", err)
	}
	s = reopen(t, s)
	mustHold(t, s, "a", files)
	mustHold(t, s, "b", other)
	mustHold(t, s, "c", files)
	mustVerify(t, s, 0)
}

// TestFailedCommitsAreTakenBack lets commits fail after their keys have reached a journal: what they would have made
// true is not true after the store is opened again either, whoever has the next chance to say so.
func TestFailedCommitsAreTakenBack(t *testing.T) {
	t.Parallel()
	t.Run("gc", func(t *testing.T) {
		takenBack(t, func(s *Store) error {
			_, err := s.GC(t.Context(), upkeep.GCOptions{})
			return err
		})
	})
	t.Run("close", func(t *testing.T) { takenBack(t, func(*Store) error { return nil }) })
	t.Run("abort", func(t *testing.T) {
		takenBack(t, func(s *Store) error {
			d, err := s.Create(t.Context(), "sealed", drafts.CreateOptions{})
			if err != nil {
				return err
			}
			if err := d.Abort(); err != nil {
				return err
			}
			// The journals say so now, before the store is closed.
			dir := filepath.Join(t.TempDir(), "copy")
			if err := os.CopyFS(dir, os.DirFS(s.dir)); err != nil {
				return err
			}
			if _, err := Repair(t.Context(), dir, testOptions(t)); err != nil {
				return err
			}
			if _, err := openTestStore(t, dir,
				testOptions(t)).Checkpoint("sealed"); fault.ClassOf(err) != fault.NotFound {
				return fmt.Errorf("in the journals it is sealed: %w", err)
			}
			return nil
		})
	})
}

// takenBack has commits fail, lets then come about, and looks whether the store is as it was before.
func takenBack(t *testing.T, then func(*Store) error) {
	s, fail := faultyStore(t)
	kept := map[string][]byte{"pages-1.img": memory(2, 3<<20)}
	for _, name := range []string{"kept", "tagged"} {
		write(t, s, name, kept)
	}
	d, err := s.Create(t.Context(), "sealed", drafts.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, d, map[string][]byte{"pages-1.img": memory(3, 3<<20), "inventory.img": []byte("x")})
	if err := s.chunks.Commit(nil); err != nil {
		t.Fatal(err)
	}
	fail(".journal", ".new")
	if _, err := d.Seal(t.Context()); err == nil {
		t.Error("sealed, though no journal could be synced")
	}
	if err := d.Abort(); err == nil {
		t.Error("the draft's record is taken back, though no journal could be synced")
	}
	if err := s.Remove(t.Context(), []string{"kept"}); err == nil {
		t.Error("removed, though no journal could be synced")
	}
	if err := s.Tag(t.Context(), "tagged", []string{"golden"}, nil); err == nil {
		t.Error("tagged, though no journal could be synced")
	}
	fail()
	if err := then(s); err != nil {
		t.Error(err)
	}
	check := func(s *Store) {
		t.Helper()
		for _, name := range []string{"kept", "tagged"} {
			mustHold(t, s, name, kept)
		}
		for _, name := range []string{"sealed", "golden"} {
			if _, err := s.Checkpoint(name); fault.ClassOf(err) != fault.NotFound {
				t.Errorf("%s: %v", name, err)
			}
		}
		mustVerify(t, s, 0)
	}
	for _, name := range []string{"kept", "tagged"} {
		mustHold(t, s, name, kept)
	}
	s = reopen(t, s) // without a verify before, which would commit something
	check(s)
	dir := s.dir
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if res, err := Repair(t.Context(), dir, s.o); err != nil || len(res.Lost) > 0 {
		t.Errorf("repair of %s: %+v, %v", filepath.Base(dir), res, err)
	}
	check(openTestStore(t, dir, s.o))
}
