package index

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/keys/keystest"
	"github.com/gpucr/gpucr-fs/index/manifest"
)

// record is what the index has at a key.
type record struct {
	key     string
	seq     uint64
	payload []byte
}

func recordOf(t *testing.T, s *Store, key string) record {
	t.Helper()
	seq, payload, err := s.chunks.DB.Meta(key)
	must(t, err)
	return record{key, seq, bytes.Clone(payload)}
}

// show has the index show these records, as it does where it has lost newer ones.
func show(t *testing.T, s *Store, list ...record) {
	t.Helper()
	b := s.chunks.DB.Batch()
	for _, r := range list {
		b.SetMeta(r.key, r.seq, r.payload)
	}
	must(t, b.Flush())
}

// hide has the index show nothing at these keys.
func hide(t *testing.T, s *Store, list ...record) {
	t.Helper()
	b := s.chunks.DB.Batch()
	for _, r := range list {
		b.DeleteMeta(r.key)
	}
	must(t, b.Flush())
}

// mustRefuse fails unless gc gives nothing back, and names repair.
func mustRefuse(t *testing.T, s *Store) {
	t.Helper()
	res, err := s.GC(t.Context(), GCOptions{})
	if ClassOf(err) != Corrupt || fault.HintOf(err) != fault.RepairHint(s.dir) || res.Reclaimed > 0 {
		t.Errorf("gc gave back %d bytes: %v", res.Reclaimed, err)
	}
}

// repaired builds the index anew and opens the store again.
func repaired(t *testing.T, s *Store) *Store {
	t.Helper()
	must(t, s.Close())
	mustRepair(t, s)
	return openTestStore(t, s.dir, s.o)
}

// The index shows a sealed checkpoint as the draft that it was before: gc must not take it for an incomplete one. Once
// it did so when the store was opened, once it does so from then on.
func TestGCWithAnOlderRoot(t *testing.T) {
	for _, opened := range []bool{true, false} {
		t.Run(fmt.Sprintf("opened=%v", opened), func(t *testing.T) {
			s := newTestStore(t, testOptions(t))
			files := map[string][]byte{"f": memory(1, 1<<20)}
			d := create(t, s, "stays", drafts.CreateOptions{})
			fill(t, d, files)
			keys := 0
			var older record
			must(t, s.chunks.DB.MetaKeys(manifest.RootPrefix, func(key string) error {
				older, keys = recordOf(t, s, key), keys+1
				return nil
			}))
			if keys != 1 {
				t.Fatalf("%d root records", keys)
			}
			_, err := d.Seal(t.Context())
			must(t, err)
			must(t, s.chunks.Packs.Roll())
			write(t, s, "newer", map[string][]byte{"f": memory(2, 1<<20)})
			show(t, s, older)
			if opened {
				s = reopen(t, s)
			}
			mustRefuse(t, s)
			s = repaired(t, s)
			mustHold(t, s, "stays", files)
		})
	}
}

// mustNotChange fails unless all that would change a checkpoint is refused, and names repair.
func mustNotChange(t *testing.T, s *Store, name string) {
	t.Helper()
	_, created := s.Create(t.Context(), "new", drafts.CreateOptions{})
	for what, err := range map[string]error{
		"create": created,
		"tag":    s.Tag(t.Context(), name, []string{"another"}, nil),
		"rename": s.Rename(t.Context(), name, "renamed"),
		"remove": s.Remove(t.Context(), []string{name}),
	} {
		if ClassOf(err) != Corrupt || fault.HintOf(err) != fault.RepairHint(s.dir) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// What is written of a checkpoint counts for more than what was written before. So nothing is, once the index shows an
// older root record of one.
func TestNothingIsChangedBehindAnOlderRoot(t *testing.T) {
	prepare := func(t *testing.T) (s *Store, id, key string) {
		s = newTestStore(t, testOptions(t))
		write(t, s, "x", map[string][]byte{"f": memory(1, 1<<20)})
		write(t, s, "stays", map[string][]byte{"f": memory(2, 1<<20)})
		x, err := s.Info("x")
		must(t, err)
		return s, x.ID, manifest.RootKey(x.ID)
	}
	t.Run("a removed checkpoint", func(t *testing.T) {
		s, _, key := prepare(t)
		older := recordOf(t, s, key)
		must(t, s.Remove(t.Context(), []string{"x"}))
		show(t, s, older)
		s = reopen(t, s)
		mustNotChange(t, s, "x")
		mustNotChange(t, s, "stays")
		s = repaired(t, s)
		if _, err := s.Info("x"); ClassOf(err) != NotFound {
			t.Errorf("the removed checkpoint is back: %v", err)
		}
		must(t, s.Tag(t.Context(), "stays", []string{"tag"}, nil))
	})
	t.Run("an earlier tag", func(t *testing.T) {
		s, id, key := prepare(t)
		must(t, s.Tag(t.Context(), "x", []string{"first"}, nil))
		older := recordOf(t, s, key)
		must(t, s.Tag(t.Context(), "x", nil, []string{"first"}))
		must(t, s.Tag(t.Context(), "stays", []string{"first"}, nil))
		show(t, s, older)
		s = reopen(t, s)
		mustNotChange(t, s, "x")
		s = repaired(t, s)
		if x, err := s.Info("first"); err != nil || x.ID == id {
			t.Errorf("the tag is the removed one's: %v", err)
		}
	})
	t.Run("a checkpoint that is not shown", func(t *testing.T) {
		s, _, key := prepare(t)
		hide(t, s, recordOf(t, s, key))
		s = reopen(t, s)
		mustNotChange(t, s, "stays")
		s = repaired(t, s)
		mustHold(t, s, "x", map[string][]byte{"f": memory(1, 1<<20)})
	})
}

// What has been noticed once is noticed again, also if a journal's tail was applied in between.
func TestOlderRootIsNoticedAgain(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "x", map[string][]byte{"f": memory(1, 1<<20)})
	write(t, s, "stays", map[string][]byte{"f": memory(2, 1<<20)})
	x, err := s.Info("x")
	must(t, err)
	older := recordOf(t, s, manifest.RootKey(x.ID))
	must(t, s.Tag(t.Context(), "x", []string{"first"}, nil))
	n := s.chunks.Packs.Active()
	mark, err := s.chunks.DB.Mark(n)
	must(t, err)
	must(t, s.Tag(t.Context(), "stays", []string{"second"}, nil))
	show(t, s, older)
	b := s.chunks.DB.Batch()
	b.SetMark(n, mark)
	must(t, b.Flush())
	for range 3 {
		s = reopen(t, s)
		mustNotChange(t, s, "x")
	}
}

// In a sound store nothing is refused, and nothing that is there is stored again, whatever was done to it before.
func TestSoundStoreRefusesNothing(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	for round := range 4 {
		other := func(i int) []byte { return memory(uint64(10*i+round), 3<<20) }
		write(t, s, "a", map[string][]byte{"f": memory(1, 3<<20)})
		write(t, s, "b", map[string][]byte{"f": other(1)})
		must(t, s.chunks.Packs.Roll())
		write(t, s, "c", map[string][]byte{"f": other(2)})
		d := create(t, s, "dropped", drafts.CreateOptions{})
		fill(t, d, map[string][]byte{"g": other(3)})
		must(t, d.Abort())
		must(t, s.Tag(t.Context(), "a", []string{"t"}, nil))
		must(t, s.Remove(t.Context(), []string{"b"}))
		_, err := s.GC(t.Context(), GCOptions{})
		must(t, err)
		mustOptimize(t, s, OptimizeOptions{})
		before := s.Stats().ChunksNew
		write(t, s, "again", map[string][]byte{"f": memory(1, 3<<20), "g": other(2)})
		if now := s.Stats().ChunksNew; now != before {
			t.Errorf("round %d: %d chunks stored again", round, now-before)
		}
		must(t, s.Rename(t.Context(), "a", "z"))
		must(t, s.Remove(t.Context(), []string{"z", "c", "again"}))
		_, err = s.GC(t.Context(), GCOptions{})
		must(t, err)
		must(t, s.Close())
		if round%2 == 0 {
			mustRepair(t, s)
		}
		if round > 0 {
			keystest.Forget(t, filepath.Join(s.dir, chunks.IndexFolder), "sroots")
		}
		s = openTestStore(t, s.dir, s.o)
	}
}

// A store that an earlier program has written has no sum over its roots, one whose index has lost the latest has
// another one.
func TestSumOfRootsIsMissing(t *testing.T) {
	for name, spoil := range map[string]func(b *keys.Batch){
		"older": func(b *keys.Batch) { b.SetRootSum(1) },
		"none":  nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestStore(t, testOptions(t))
			write(t, s, "x", map[string][]byte{"f": memory(1, 1<<20)})
			write(t, s, "gone", map[string][]byte{"f": memory(2, 1<<20)})
			must(t, s.Remove(t.Context(), []string{"gone"}))
			sum, err := s.chunks.DB.RootSum()
			must(t, err)
			if spoil != nil {
				b := s.chunks.DB.Batch()
				spoil(b)
				must(t, b.Flush())
			}
			must(t, s.Close())
			if spoil == nil {
				keystest.Forget(t, filepath.Join(s.dir, chunks.IndexFolder), "sroots")
			}
			s = openTestStore(t, s.dir, s.o)
			if now, err := s.chunks.DB.RootSum(); now != sum || err != nil {
				t.Errorf("sum %x, %v, and %x before", now, err, sum)
			}
			must(t, s.Tag(t.Context(), "x", []string{"tag"}, nil))
			s = reopen(t, s)
			mustHold(t, s, "tag", map[string][]byte{"f": memory(1, 1<<20)})
		})
	}
}

// The index shows a removed checkpoint as it was before: the record of its removal must not go with the pack whose
// journal has it.
func TestRemovedStaysRemovedBehindAnOlderRoot(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "x", map[string][]byte{"f": memory(1, 1<<20)})
	x, err := s.Info("x")
	must(t, err)
	var older []record
	must(t, s.chunks.DB.MetaKeys("", func(key string) error {
		if manifest.OwnerOf(key) == x.ID {
			older = append(older, recordOf(t, s, key))
		}
		return nil
	}))
	write(t, s, "stays", map[string][]byte{"f": memory(2, 1<<20)})
	must(t, s.chunks.Packs.Roll())
	write(t, s, "gone", map[string][]byte{"f": memory(3, 1<<20)})
	must(t, s.Remove(t.Context(), []string{"x"}))
	must(t, s.chunks.Packs.Roll())
	write(t, s, "newer", map[string][]byte{"f": memory(4, 1<<20)})
	must(t, s.Remove(t.Context(), []string{"gone"}))
	show(t, s, older...)
	s = reopen(t, s)
	mustRefuse(t, s)
	must(t, s.Close())
	must(t, os.RemoveAll(filepath.Join(s.dir, chunks.IndexFolder)))
	mustRepair(t, s)
	s = openTestStore(t, s.dir, s.o)
	if _, err := s.Info("x"); ClassOf(err) != NotFound {
		t.Errorf("the removed checkpoint is back: %v", err)
	}
	if all, err := s.Names(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("%d checkpoints of 2, %v", len(all), err)
	}
}

// The index shows a removed checkpoint as it was before while gc sweeps: the record of its removal is not to go then
// either.
func TestRemovedStaysRemovedBehindARootThatBecameOlder(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "x", map[string][]byte{"f": memory(1, 1<<20)})
	x, err := s.Info("x")
	must(t, err)
	older := recordOf(t, s, manifest.RootKey(x.ID))
	write(t, s, "stays", map[string][]byte{"f": memory(2, 1<<20)})
	must(t, s.chunks.Packs.Roll())
	write(t, s, "gone", map[string][]byte{"f": memory(3, 1<<20)})
	must(t, s.Remove(t.Context(), []string{"x", "gone"}))
	must(t, s.chunks.Packs.Roll())
	write(t, s, "newer", map[string][]byte{"f": memory(4, 1<<20)})
	res, err := s.GC(t.Context(), GCOptions{Progress: func(done, _ int64) {
		if done == 1 {
			show(t, s, older)
		}
	}})
	must(t, err)
	if res.PacksGone != 1 {
		t.Fatalf("%d packs are gone: the test shows nothing", res.PacksGone)
	}
	must(t, s.Close())
	must(t, os.RemoveAll(filepath.Join(s.dir, chunks.IndexFolder)))
	mustRepair(t, s)
	s = openTestStore(t, s.dir, s.o)
	if _, err := s.Info("x"); ClassOf(err) != NotFound {
		t.Errorf("the removed checkpoint is back: %v", err)
	}
}

// The index did not show some roots when the store was opened, and does so now: gc must not work without them.
func TestGCWithRootsThatOpenDidNotShow(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	files := func(i int) map[string][]byte { return map[string][]byte{"f": memory(uint64(i), 1<<20)} }
	var unseen []record
	for i := range 10 {
		write(t, s, fmt.Sprint("c", i), files(i))
		info, err := s.Info(fmt.Sprint("c", i))
		must(t, err)
		if i < 7 {
			unseen = append(unseen, recordOf(t, s, manifest.RootKey(info.ID)))
		}
	}
	must(t, s.chunks.Packs.Roll())
	write(t, s, "newer", files(100))
	hide(t, s, unseen...)
	s = reopen(t, s)
	show(t, s, unseen...)
	mustRefuse(t, s)
	s = reopen(t, s)
	for i := range 10 {
		mustHold(t, s, fmt.Sprint("c", i), files(i))
	}
}

// Part of the index is lost while gc gives back one pack after the other.
func TestGCWhileTheIndexIsLost(t *testing.T) {
	const stay = 10
	prepare := func(t *testing.T, beside int) *Store {
		s := newTestStore(t, testOptions(t))
		write(t, s, "first", map[string][]byte{"f": memory(1, 1<<20)})
		must(t, s.chunks.Packs.Roll())
		write(t, s, "gone", map[string][]byte{"f": memory(2, 4<<20)})
		write(t, s, "beside", map[string][]byte{"f": memory(4, beside)}) // else the pack goes as a whole
		for i := range stay {
			write(t, s, fmt.Sprint("stays-", i), map[string][]byte{"f": fmt.Append(nil, "content ", i)})
		}
		must(t, s.chunks.Packs.Roll())
		write(t, s, "newer", map[string][]byte{"f": memory(3, 1<<20)})
		must(t, s.Remove(t.Context(), []string{"gone"}))
		return reopen(t, s) // all of the index is in tables
	}
	collect := func(s *Store, lose func()) error {
		_, err := s.GC(context.Background(), GCOptions{Progress: func(done, _ int64) {
			if done == 1 {
				lose()
			}
		}})
		return err
	}
	mustStay := func(t *testing.T, s *Store) {
		t.Helper()
		for i := range stay {
			mustHold(t, s, fmt.Sprint("stays-", i), map[string][]byte{"f": fmt.Append(nil, "content ", i)})
		}
	}
	t.Run("Badger merged tables without what it could not read", func(t *testing.T) {
		s := prepare(t, 100)
		// What it says is for its caller: nothing may be lost.
		_ = collect(s, func() {
			b := s.chunks.DB.Batch()
			must(t, s.chunks.DB.MetaKeys("", func(key string) error {
				b.DeleteMeta(key)
				return nil
			}))
			must(t, b.Flush())
		})
		mustStay(t, repaired(t, s))
	})
	t.Run("a block cannot be read for a moment", func(t *testing.T) {
		s := prepare(t, 1<<20)
		undo := func() {}
		_ = collect(s, func() { undo = spoil(t, s.dir, func([]byte) int { return 200 }) })
		undo()
		// Its chunks are not to be found where they were.
		write(t, s, "again", map[string][]byte{"f": memory(2, 4<<20)})
		mustHold(t, s, "again", map[string][]byte{"f": memory(2, 4<<20)})
		mustStay(t, repaired(t, s))
	})
}
