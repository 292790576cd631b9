package index

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/reading"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// beside runs fn beside what calls it, which goes on when fn is done, or when fn has had time enough to do harm and is
// waiting for its caller. join waits for fn.
func beside(fn func()) (join func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(300 * time.Millisecond):
	}
	return func() { <-done }
}

// rebuilt gives the store as its journals alone tell it.
func rebuilt(t testing.TB, s *Store) *Store {
	t.Helper()
	if err := errors.Join(s.Close(), os.RemoveAll(filepath.Join(s.dir, chunks.IndexFolder))); err != nil {
		t.Fatal(err)
	}
	if res, err := Repair(t.Context(), s.dir, s.o); err != nil || len(res.Lost) > 0 {
		t.Errorf("repair: %+v, %v", res, err)
	}
	return openTestStore(t, s.dir, s.o)
}

func create(t testing.TB, s *Store, name string, o drafts.CreateOptions) *drafts.Draft {
	t.Helper()
	d, err := s.Create(t.Context(), name, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func mustSeal(t testing.TB, d *drafts.Draft) {
	t.Helper()
	if _, err := d.Seal(context.Background()); err != nil {
		t.Error(err)
	}
}

// settled waits until all that a draft was given is stored.
func settled(t testing.TB, d *drafts.Draft) {
	t.Helper()
	list, err := d.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		f, err := d.Open(e.Path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Flush(t.Context()), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGCSparesSlotsOfAnAbortedDraft: a draft fills a pack, goes on in the next and is given up while gc works. Its
// slots are in no journal yet, and others may still be told of them.
func TestGCSparesSlotsOfAnAbortedDraft(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "old", map[string][]byte{"f": memory(1, 1<<20)})
	files := map[string][]byte{"pages-1.img": memory(2, 40<<20)}
	s.upkeep.Hooks.Found = func() {
		d := create(t, s, "draft", drafts.CreateOptions{})
		fill(t, d, files)
		settled(t, d)
		if err := d.Abort(); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil {
		t.Fatal(err)
	}
	s.upkeep.Hooks.Found = nil
	if s.chunks.Packs.Active() < 2 {
		t.Fatal("no pack was filled")
	}
	write(t, s, "new", files)
	s.reading.DropCache()
	mustHold(t, s, "new", files)
	mustVerify(t, s, 0)
}

// TestGCSparesWhatIsBeingCommitted: chunks are in a journal and not yet in the index when gc looks. If gc called them
// dead then, the index would get them afterwards.
func TestGCSparesWhatIsBeingCommitted(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	files := map[string][]byte{"pages-1.img": memory(2, 3<<20)}
	d := create(t, s, "draft", drafts.CreateOptions{})
	fill(t, d, files)
	if err := d.Abort(); err != nil {
		t.Fatal(err)
	}
	s.upkeep.Hooks.Found = func() {
		if n, err := s.chunks.LoseIndexed(1); err != nil || n == 0 {
			t.Errorf("%d chunks, %v", n, err)
		}
	}
	if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil {
		t.Fatal(err)
	}
	s.upkeep.Hooks, s.chunks.Hooks = upkeep.Hooks{}, chunks.Hooks{}
	if err := s.chunks.Commit(nil); err != nil {
		t.Fatal(err)
	}
	write(t, s, "new", files)
	s.reading.DropCache()
	mustHold(t, s, "new", files)
	mustVerify(t, s, 0)
}

// TestRecentChunksAreForgotten: a commit may take a chunk before its worker has told that it is stored. If the chunk
// stayed recent for ever, a look-up would give its slot after gc has given that back.
func TestRecentChunksAreForgotten(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	s.chunks.Hooks.Appended = func() {
		if err := s.chunks.Commit(nil); err != nil {
			t.Error(err)
		}
	}
	files := map[string][]byte{"f": memory(1, 4<<20)}
	d := create(t, s, "a", drafts.CreateOptions{})
	fill(t, d, files)
	if err := d.Abort(); err != nil {
		t.Fatal(err)
	}
	if n := len(s.chunks.RecentChunks()); n > 0 {
		t.Errorf("%d chunks that the index knows count as recent for ever", n)
	}
	if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil {
		t.Fatal(err)
	}
	write(t, s, "b", files)
	s.reading.DropCache()
	mustHold(t, s, "b", files)
}

// TestCommitWhileGCRewritesAJournal: what a commit writes into the journal of an older pack is there afterwards.
func TestCommitWhileGCRewritesAJournal(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "old", map[string][]byte{"f": memory(1, 1<<20)})
	for _, size := range []int{2 << 20, 10} { // garbage in the first pack's journal
		if err := s.SetProfile("old", make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string][]byte{"pages-1.img": memory(2, 40<<20)}
	var d *drafts.Draft
	var rewritten []uint32
	join := func() {}
	s.upkeep.Hooks.Found = func() {
		d = create(t, s, "new", drafts.CreateOptions{})
		fill(t, d, files)
		settled(t, d)
	}
	s.chunks.Hooks.Rewriting = func(n uint32) {
		rewritten = append(rewritten, n)
		join = beside(func() { mustSeal(t, d) })
	}
	if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil {
		t.Fatal(err)
	}
	join()
	s.upkeep.Hooks, s.chunks.Hooks = upkeep.Hooks{}, chunks.Hooks{}
	if !slices.Equal(rewritten, []uint32{1}) {
		t.Fatalf("journals written anew: %v", rewritten)
	}
	if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil {
		t.Fatal(err)
	}
	s.reading.DropCache()
	mustHold(t, s, "new", files)
	mustVerify(t, s, 0)
	s = rebuilt(t, s)
	mustHold(t, s, "new", files)
}

// TestCommitWhileGCDropsAPack: a key that is written anew while gc moves it keeps its new value.
func TestCommitWhileGCDropsAPack(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	files := map[string][]byte{"f": memory(2, 20<<20)}
	write(t, s, "gone", map[string][]byte{"f": memory(1, 8<<20)})
	write(t, s, "stays", map[string][]byte{"f": []byte("small")})
	if err := s.SetProfile("stays", []byte("old")); err != nil {
		t.Fatal(err)
	}
	if err := s.chunks.Packs.Roll(); err != nil {
		t.Fatal(err)
	}
	write(t, s, "newer", files)
	if err := s.Remove(t.Context(), []string{"gone"}); err != nil {
		t.Fatal(err)
	}
	join := func() {}
	s.chunks.Hooks.Moving = func() {
		join = beside(func() {
			if err := s.SetProfile("stays", []byte("new")); err != nil {
				t.Error(err)
			}
		})
	}
	res, err := s.GC(t.Context(), upkeep.GCOptions{})
	join()
	s.upkeep.Hooks, s.chunks.Hooks = upkeep.Hooks{}, chunks.Hooks{}
	if err != nil || res.PacksGone != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
	for range 2 {
		if p, err := s.Profile("stays"); string(p) != "new" {
			t.Errorf("profile %q, %v", p, err)
		}
		mustHold(t, s, "newer", files)
		s = rebuilt(t, s)
	}
}

// TestDamageIsRemembered: what verify has named is stored anew when it comes by again, in whatever process.
func TestDamageIsRemembered(t *testing.T) {
	t.Parallel()
	files := map[string][]byte{"pages-1.img": memory(1, 12<<20)}
	for name, between := range map[string]func(*testing.T, *Store) *Store{
		"same process":  func(_ *testing.T, s *Store) *Store { return s },
		"opened anew":   func(t *testing.T, s *Store) *Store { return reopen(t, s) },
		"index lost":    rebuiltForTest,
		"twice rebuilt": func(t *testing.T, s *Store) *Store { return rebuiltForTest(t, rebuiltForTest(t, s)) },
	} {
		for how, find := range map[string]func(*testing.T, *Store){
			"verified": func(t *testing.T, s *Store) { mustVerify(t, s, 1) },
			"read": func(t *testing.T, s *Store) {
				s.reading.DropCache()
				if _, err := read(s, "a", "pages-1.img"); fault.ClassOf(err) != fault.Corrupt {
					t.Errorf("%v", err)
				}
			},
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				s := newTestStore(t, testOptions(t))
				write(t, s, "a", files)
				flip(t, s.chunks.Packs.PackPath(1), 5)
				find(t, s)
				s = between(t, s)
				write(t, s, "b", files)
				s.reading.DropCache()
				mustHold(t, s, "b", files)
				mustHold(t, s, "a", files)
				if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil {
					t.Error(err)
				}
				s = between(t, s)
				mustVerify(t, s, 0)
				before := s.Stats().BytesStored
				write(t, s, "c", files)
				if s.Stats().BytesStored != before {
					t.Error("what was healed is stored again")
				}
			})
		}
	}
}

func rebuiltForTest(t *testing.T, s *Store) *Store { return rebuilt(t, s) }

// TestDamageThatHasGone: what is found sound again is no longer stored anew.
func TestDamageThatHasGone(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	files := map[string][]byte{"pages-1.img": memory(1, 4<<20)}
	write(t, s, "a", files)
	flip(t, s.chunks.Packs.PackPath(1), 5)
	mustVerify(t, s, 1)
	flip(t, s.chunks.Packs.PackPath(1), 5)
	s = reopen(t, s)
	if len(s.chunks.DamagedChunks()) != 1 {
		t.Errorf("damage known after opening: %v", s.chunks.DamagedChunks())
	}
	mustVerify(t, s, 0)
	s = reopen(t, s)
	write(t, s, "b", files)
	if n := s.Stats().BytesStored; n > 0 || len(s.chunks.DamagedChunks()) > 0 {
		t.Errorf("%d bytes stored again, damage %v", n, s.chunks.DamagedChunks())
	}
}

// TestDamagedSlotNotYetIndexed: a chunk is damaged before a commit has told the index of it.
func TestDamagedSlotNotYetIndexed(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	files := map[string][]byte{"f": memory(1, 2<<20)}
	d := create(t, s, "a", drafts.CreateOptions{})
	fill(t, d, files)
	settled(t, d)
	if len(s.chunks.RecentChunks()) == 0 {
		t.Fatal("no chunk is stored")
	}
	for id, loc := range s.chunks.RecentChunks() {
		s.chunks.SetDamaged(id, loc)
		flip(t, s.chunks.Packs.PackPath(1), loc.Offset())
	}
	write(t, s, "b", files)
	mustSeal(t, d)
	s.reading.DropCache()
	mustHold(t, s, "a", files)
	mustHold(t, s, "b", files)
	s = reopen(t, s)
	mustHold(t, s, "a", files)
	if n := len(s.chunks.RecentChunks()); n > 0 {
		t.Errorf("%d chunks count as recent", n)
	}
}

// TestGCBesideAChunkStoredAnew: a chunk that could not be read for a moment is stored anew by a draft, and the old slot
// can be read again. A collection then must not give that up: a crash before the next commit leaves nothing else.
func TestGCBesideAChunkStoredAnew(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	files := map[string][]byte{"f": memory(1, 2<<20)}
	write(t, s, "a", files)
	err := s.chunks.DB.Chunks(func(id chunk.ID, loc pack.Loc, err error) error {
		s.chunks.SetDamaged(id, loc)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	d := create(t, s, "b", drafts.CreateOptions{})
	s.upkeep.Hooks.Begun = func() {
		fill(t, d, files)
		settled(t, d)
	}
	if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "store")
	if err := os.CopyFS(to, os.DirFS(s.Dir())); err != nil {
		t.Fatal(err)
	}
	after := openTestStore(t, to, testOptions(t))
	defer after.Close()
	mustHold(t, after, "a", files)
	if err := d.Abort(); err != nil {
		t.Fatal(err)
	}
}

// TestGCBesideADamagedCheckpoint: one damaged checkpoint does not keep the rest from being collected for ever, and
// nothing that it may use is given back.
func TestGCBesideADamagedCheckpoint(t *testing.T) {
	t.Parallel()
	old, newer := map[string][]byte{"f": memory(1, 20<<20)}, map[string][]byte{"f": memory(2, 40<<20)}
	stays := map[string][]byte{"f": memory(3, 5<<20)}
	for name, damage := range map[string]func(t *testing.T, s *Store, id string){
		"manifest": func(t *testing.T, s *Store, id string) {
			if err := s.deleteKeys(manifest.TablePrefix + id); err != nil {
				t.Fatal(err)
			}
		},
		"segment": func(t *testing.T, s *Store, id string) {
			if err := s.deleteKeys(manifest.SegmentPrefix + id); err != nil {
				t.Fatal(err)
			}
		},
		"chunk": func(t *testing.T, s *Store, id string) {
			c, err := s.Checkpoint("stays")
			if err != nil {
				t.Fatal(err)
			}
			shared := map[chunk.ID]bool{}
			for _, e := range c.Entries() {
				f := openFile(t, s, "stays", e.Path)
				err := f.Extents(0, e.Size, func(x reading.Extent) bool { shared[x.ID] = true; return true })
				if err := errors.Join(err, f.Close()); err != nil {
					t.Fatal(err)
				}
			}
			b := s.chunks.DB.Batch()
			if err := s.chunks.DB.Chunks(func(id chunk.ID, loc pack.Loc, err error) error {
				if err == nil && loc.Pack == 1 && !shared[id] {
					b.DeleteChunk(id)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if err := b.Flush(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestStore(t, testOptions(t))
			write(t, s, "old", old)
			write(t, s, "newer", newer)
			write(t, s, "stays", stays)
			damage(t, s, idOf(t, s, "old"))
			if err := s.Remove(t.Context(), []string{"newer"}); err != nil {
				t.Fatal(err)
			}
			res, err := s.GC(t.Context(), upkeep.GCOptions{})
			if fault.ClassOf(err) != fault.Corrupt || fault.HintOf(err) == "" {
				t.Errorf("gc says %v", err)
			}
			if res.Reclaimed < 10<<20 {
				t.Errorf("%d bytes were given back", res.Reclaimed)
			}
			mustHold(t, s, "stays", stays)
			// The others are listed and counted all the same.
			u, err := s.Usage(t.Context())
			if err != nil || len(u.Checkpoints) != 2 {
				t.Fatalf("usage: %+v, %v", u, err)
			}
			for _, i := range u.Checkpoints {
				if lost := i.Name == "old" && name != "chunk"; lost != (i.Damage != "") || lost && i.Stored != -1 ||
					i.Name == "stays" && i.Stored < 1<<20 {
					t.Errorf("listed: %+v", i)
				}
			}
			// The journals bring it back as it was.
			s = rebuilt(t, s)
			mustHold(t, s, "old", old)
			mustHold(t, s, "stays", stays)
			mustVerify(t, s, 0)
			damage(t, s, idOf(t, s, "old"))
			if err := s.Remove(t.Context(), []string{"old"}); err != nil {
				t.Fatal(err)
			}
			if res, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil ||
				name != "chunk" && res.Reclaimed < 5<<20 {
				t.Errorf("with the damaged one removed: %+v, %v", res, err)
			}
			mustHold(t, s, "stays", stays)
		})
	}
}

func (s *Store) deleteKeys(prefix string) error {
	b := s.chunks.DB.Batch()
	if err := s.chunks.DB.MetaKeys(prefix, func(key string) error {
		b.DeleteMeta(key)
		return nil
	}); err != nil {
		return err
	}
	return b.Flush()
}

// TestGCLeavesAPackAlone whose journal does not list what is in use.
func TestGCLeavesAPackAlone(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	files := map[string][]byte{"f": memory(1, 40<<20)}
	write(t, s, "a", files)
	var chunks []pack.Chunk
	if _, _, err := s.chunks.Packs.Read(1, 0, func(r pack.Record) error {
		if r.Chunk != nil {
			chunks = append(chunks, *r.Chunk)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.chunks.Packs.RewriteJournal(1, chunks[:len(chunks)/2], nil); err != nil {
		t.Fatal(err)
	}
	if res, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil ||
		!slices.Equal(res.Kept, []string{pack.Name(1)}) {
		t.Errorf("gc says %+v, %v", res, err)
	}
	s.reading.DropCache()
	mustHold(t, s, "a", files)
}

func idOf(t *testing.T, s *Store, name string) string {
	t.Helper()
	c, err := s.Checkpoint(name)
	if err != nil {
		t.Fatal(err)
	}
	return c.Info().ID
}
