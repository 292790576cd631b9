package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpucr/gpucr-fs/index/accounting"
	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/reading"
	"github.com/gpucr/gpucr-fs/index/storage"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// heap makes n bytes as a process full of small objects has them: pointers close to each other, counts, short words.
func heap(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 7))
	words := strings.Fields(
		"name value children parent next previous token index of a tree node with some text in it and numbers")
	b := make([]byte, 0, n+256)
	base := 0x7f3a00000000 + r.Uint64N(1<<24)<<12
	for len(b) < n {
		b = fmt.Appendf(b, "%08x", base+r.Uint64N(1<<20)&^15)
		b = append(b, byte(r.IntN(40)), 0, 0, 0, byte(r.IntN(3)), 0, 0, 0)
		for range 1 + r.IntN(6) {
			b = append(b, words[r.IntN(len(words))]...)
			b = append(b, ' ')
		}
	}
	return b[:n]
}

func mustOptimize(t testing.TB, s *Store, o upkeep.OptimizeOptions) upkeep.OptimizeResult {
	t.Helper()
	res, err := s.Optimize(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestOptimize(t *testing.T) {
	t.Parallel()
	s := newTestStore(t, testOptions(t))
	ctx := t.Context()
	all := map[string]map[string][]byte{
		"a": {"pages-1.img": heap(1, 6<<20), "pages-2.img": memory(2, 5<<20)},
		"b": {"pages-1.img": heap(1, 7<<20), "small.img": []byte("few bytes")},
	}
	for name, files := range all {
		write(t, s, name, files)
	}
	hold := func() {
		t.Helper()
		s.reading.DropCache()
		for name, files := range all {
			mustHold(t, s, name, files)
		}
		mustVerify(t, s, 0)
	}
	before, err := accounting.DiskUsage(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	was, err := s.Usage(ctx)
	if err != nil {
		t.Fatal(err)
	}
	dry := mustOptimize(t, s, upkeep.OptimizeOptions{DryRun: true})
	var seen, total int64
	res := mustOptimize(t, s, upkeep.OptimizeOptions{Progress: func(done, of int64) { seen, total = done, of }})
	if dry != res || res.Rewritten == 0 || res.After > res.Before-res.Before/10 || seen != total || total == 0 {
		t.Errorf("dry run %+v, then %+v; %d of %d bytes looked at", dry, res, seen, total)
	}
	hold()
	gc, err := s.GC(ctx, upkeep.GCOptions{})
	if err != nil || gc.Reclaimed < res.Before {
		t.Errorf("gc: %+v, %v; %d bytes were moved", gc, err, res.Before)
	}
	after, err := accounting.DiskUsage(s.dir)
	if err != nil || before-after < (res.Before-res.After)*9/10 {
		t.Errorf("%d bytes on disk, %d before, of which %d were to be saved (%v)", after, before, res.Before-res.After,
			err)
	}
	is, err := s.Usage(ctx)
	if err != nil || was.Stored-is.Stored != res.Before-res.After {
		t.Errorf("%d bytes stored, %d before, of which %d were to be saved (%v)", is.Stored, was.Stored,
			res.Before-res.After, err)
	}
	for i, c := range is.Checkpoints {
		if c.Stored >= was.Checkpoints[i].Stored || c.Unique != was.Checkpoints[i].Unique {
			t.Errorf("checkpoint %+v was %+v", c, was.Checkpoints[i])
		}
	}
	hold()
	if again := mustOptimize(t, s, upkeep.OptimizeOptions{}); again.Rewritten != 0 {
		t.Errorf("again: %+v", again)
	}
	s = reopen(t, s)
	hold()
	s = rebuilt(t, s)
	hold()
	// Content that comes by again is found where it is now.
	write(t, s, "c", all["a"])
	if n := s.Stats().ChunksNew; n != 0 {
		t.Errorf("%d chunks were stored that the store had", n)
	}
}

// TestOptimizeLeavesTheRest: what does not become smaller, what only drafts use, and what is damaged.
func TestOptimizeLeavesTheRest(t *testing.T) {
	t.Parallel()
	s := newTestStore(t, testOptions(t))
	noise := make([]byte, 4<<20)
	rand.NewChaCha8([32]byte{9}).Read(noise)
	write(t, s, "noise", map[string][]byte{"pages-1.img": noise})
	d := create(t, s, "draft", drafts.CreateOptions{})
	fill(t, d, map[string][]byte{"pages-1.img": heap(3, 4<<20)})
	if res := mustOptimize(t, s, upkeep.OptimizeOptions{}); res.Rewritten != 0 || res.Skipped != res.Chunks {
		t.Errorf("%+v", res)
	}
	if _, err := d.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	var bad chunk.ID
	f := openFile(t, s, "draft", "pages-1.img")
	f.Extents(0, 1, func(x reading.Extent) bool { bad = x.ID; return false })
	loc, err := s.chunks.Locate(bad)
	if err != nil {
		t.Fatal(err)
	}
	s.reading.DropCache()
	flip(t, s.chunks.Packs.PackPath(loc.Pack), loc.Offset())
	res := mustOptimize(t, s, upkeep.OptimizeOptions{})
	if now, err := s.chunks.Locate(bad); err != nil || now != loc || res.Damaged != 1 || res.Rewritten == 0 {
		t.Errorf("%+v; the damaged chunk went from %v to %v, %v", res, loc, now, err)
	}
	mustVerify(t, s, 1)
}

// TestReadersMeetMovedChunks: a reader who knows where a chunk was reads it where it is.
func TestReadersMeetMovedChunks(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]bool{"looked up when read": false, "located ahead": true} {
		for how, readAll := range map[string]func(f *reading.File, p []byte) (int, error){
			"ReadAt":   func(f *reading.File, p []byte) (int, error) { return f.ReadAt(p, 0) },
			"ReadInto": func(f *reading.File, p []byte) (int, error) { return f.ReadInto(p, 0) },
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				s := newTestStore(t, testOptions(t))
				want := append(heap(4, 3<<20), memory(5, 3<<20)...)
				write(t, s, "c", map[string][]byte{"pages-1.img": want})
				if err := s.chunks.Packs.Roll(); err != nil { // the old pack goes as a whole, where nothing of it stays
					t.Fatal(err)
				}
				f := openFile(t, s, "c", "pages-1.img")
				if ahead {
					f.Locate(0, f.Size(), nil)
				}
				s.reading.DropCache()
				once := sync.Once{}
				s.reading.Hooks.Located = func() {
					once.Do(func() {
						if res := mustOptimize(t, s, upkeep.OptimizeOptions{}); res.Rewritten == 0 {
							t.Errorf("nothing moved: %+v", res)
						}
						if res, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil || res.Reclaimed == 0 {
							t.Errorf("gc: %+v, %v", res, err)
						}
					})
				}
				got := make([]byte, len(want))
				if n, err := readAll(f, got); n != len(want) || err != nil || !bytes.Equal(got, want) {
					t.Errorf("%d bytes of %d, %v", n, len(want), err)
				}
				if s.chunks.KnownDamaged(chunk.ID{}) || len(s.chunks.DamagedChunks()) > 0 {
					t.Errorf("taken for damaged: %v", s.chunks.DamagedChunks())
				}
				mustVerify(t, s, 0)
			})
		}
	}
}

// TestOptimizeBesideEverything: readers, writers of the same content, removals and collections.
func TestOptimizeBesideEverything(t *testing.T) {
	t.Parallel()
	o := testOptions(t)
	o.Logger = nil
	s := newTestStore(t, o)
	ctx := t.Context()
	kept := map[string][]byte{"pages-1.img": heap(6, 2<<20)}
	write(t, s, "kept", kept)
	for round := range 6 {
		fresh := map[string][]byte{"pages-1.img": slices.Concat(heap(uint64(10+round), 1<<20), kept["pages-1.img"])}
		name := fmt.Sprint("c", round)
		write(t, s, name, fresh)
		var work sync.WaitGroup
		work.Go(func() {
			for range 2 {
				if _, err := s.Optimize(ctx, upkeep.OptimizeOptions{}); err != nil {
					t.Errorf("optimize: %v", err)
				}
				if _, err := s.GC(ctx, upkeep.GCOptions{}); err != nil {
					t.Errorf("gc: %v", err)
				}
			}
		})
		for range 2 {
			work.Go(func() {
				for range 6 {
					s.reading.DropCache()
					mustHold(t, s, name, fresh)
					mustHold(t, s, "kept", kept)
				}
			})
		}
		work.Go(func() {
			write(t, s, "again-"+name, fresh)
			if err := s.Remove(ctx, []string{"again-" + name}); err != nil {
				t.Error(err)
			}
		})
		work.Wait()
		mustVerify(t, s, 0)
		if n := len(s.chunks.RecentChunks()); n > 0 {
			t.Errorf("%d chunks count as recent", n)
		}
	}
	s = rebuilt(t, s)
	mustHold(t, s, "kept", kept)
}

// TestOptimizePacksGivenBack: a collection gives back a pack that is to be optimized.
func TestOptimizePacksGivenBack(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	kept := map[string][]byte{"pages-1.img": heap(20, 2<<20)}
	write(t, s, "kept", kept)
	if err := s.chunks.Packs.Roll(); err != nil {
		t.Fatal(err)
	}
	write(t, s, "removed", map[string][]byte{"pages-1.img": heap(21, 2<<20)})
	if err := s.chunks.Packs.Roll(); err != nil {
		t.Fatal(err)
	}
	dropped := 0
	giveBack := sync.OnceFunc(func() {
		if err := s.Remove(t.Context(), []string{"removed"}); err != nil {
			t.Error(err)
		}
		res, err := s.GC(t.Context(), upkeep.GCOptions{})
		if err != nil {
			t.Error(err)
		}
		dropped = res.PacksGone
	})
	mustOptimize(t, s, upkeep.OptimizeOptions{Busy: func() bool { giveBack(); return false }})
	if dropped == 0 {
		t.Error("no pack was given back meanwhile")
	}
	mustHold(t, s, "kept", kept)
	mustVerify(t, s, 0)
}

// TestDraftsKeepMovedChunks: a draft that was told of the old place keeps the new one.
func TestDraftsKeepMovedChunks(t *testing.T) {
	t.Parallel()
	s := newTestStore(t, testOptions(t))
	files := map[string][]byte{"pages-1.img": heap(7, 3<<20)}
	write(t, s, "old", files)
	d := create(t, s, "new", drafts.CreateOptions{})
	fill(t, d, files)
	f, err := d.Create("pages-2.img", 0o600) // still open: its chunks are on their way
	if err != nil {
		t.Fatal(err)
	}
	if res := mustOptimize(t, s, upkeep.OptimizeOptions{}); res.Rewritten == 0 {
		t.Fatalf("%+v", res)
	}
	if err := errors.Join(f.Close(), s.Remove(t.Context(), []string{"old"})); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.reading.DropCache()
	mustHold(t, s, "new", files)
	mustVerify(t, s, 0)
}

// TestGCKeepsMovedChunksOfDamagedManifests: they are in packs that are younger than the checkpoint.
func TestGCKeepsMovedChunksOfDamagedManifests(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	noise := make([]byte, 1<<20) // it stays, and the pack with the root record
	rand.NewChaCha8([32]byte{8}).Read(noise)
	files := map[string][]byte{"pages-1.img": append(heap(8, 3<<20), noise...)}
	write(t, s, "a", files)
	id, e := entryOf(t, s, "a")
	number := e.Number
	if err := s.chunks.Packs.Roll(); err != nil {
		t.Fatal(err)
	}
	if res := mustOptimize(t, s, upkeep.OptimizeOptions{}); res.Rewritten == 0 {
		t.Fatalf("%+v", res)
	}
	gc := func() error { _, err := s.GC(t.Context(), upkeep.GCOptions{}); return err }
	if err := errors.Join(gc(), s.chunks.Packs.Roll()); err != nil {
		t.Fatal(err)
	}
	write(t, s, "b", map[string][]byte{"pages-1.img": []byte("the newest pack is another one")})
	b := s.chunks.DB.Batch()
	b.DeleteMeta(manifest.SegmentKey(id, number, 0))
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	if err := gc(); fault.ClassOf(err) != fault.Corrupt {
		t.Errorf("gc: %v", err)
	}
	if _, err := s.Optimize(t.Context(), upkeep.OptimizeOptions{}); fault.ClassOf(err) != fault.Corrupt {
		t.Errorf("optimize: %v", err)
	}
	s = rebuilt(t, s)
	mustHold(t, s, "a", files)
	mustVerify(t, s, 0)
}

func TestOptimizeEndsWhenAsked(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	files := map[string][]byte{"pages-1.img": heap(9, 16<<20)}
	write(t, s, "a", files)
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		s.upkeep.Hooks.Moved = func() { cancel() } // after the first batch
		_, err := s.Optimize(ctx, upkeep.OptimizeOptions{})
		cancel()
		s.reading.DropCache()
		mustHold(t, s, "a", files)
		if err == nil {
			mustVerify(t, s, 0)
			return
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	t.Error("every run began anew")
}

// optimizeChild optimizes until the moment that its mode names, says so, and waits to be killed.
func optimizeChild(moment string) func(dir string) error {
	return func(dir string) error {
		s, err := Open(context.Background(), dir, Options{FreeFloor: 1})
		if err != nil {
			return err
		}
		wait := func() {
			fmt.Println("there")
			select {}
		}
		batches := 0
		switch moment {
		case "placed":
			s.upkeep.Hooks.Placed = wait
		case "checked":
			s.upkeep.Hooks.Checked = wait
		case "moved":
			s.upkeep.Hooks.Moved = func() {
				if batches++; batches == 2 {
					wait()
				}
			}
		}
		_, err = s.Optimize(context.Background(), upkeep.OptimizeOptions{})
		return errors.Join(err, errors.New("there was no such moment"))
	}
}

func TestOptimizeIsKilled(t *testing.T) {
	t.Parallel()
	s := newTestStore(t, testOptions(t))
	files := map[string][]byte{"pages-1.img": heap(10, 30<<20)}
	write(t, s, "a", files)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, moment := range []string{"placed", "checked", "moved"} {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), exe, s.dir)
		cmd.Env = append(os.Environ(), childMode+"=optimize-"+moment)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		said := make([]byte, 6)
		if _, err := io.ReadFull(out, said); err != nil || string(said) != "there\n" {
			t.Errorf("%s: the child said %q, %v", moment, said, err)
		}
		cmd.Process.Kill()
		cmd.Wait()
		s = openTestStore(t, s.dir, s.o)
		mustHold(t, s, "a", files)
		mustVerify(t, s, 0)
		if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil {
			t.Error(err)
		}
		s.reading.DropCache()
		mustHold(t, s, "a", files)
	}
	if res := mustOptimize(t, s, upkeep.OptimizeOptions{}); res.Rewritten == 0 {
		t.Errorf("nothing was left: %+v", res)
	}
	s = rebuilt(t, s)
	mustHold(t, s, "a", files)
}

// TestOptimizeAndPowerFails: from what a power cut leaves at any change of a file during optimization and collection,
// journals alone bring everything back.
func TestOptimizeAndPowerFails(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	if err := Init(dir, InitOptions{PackSize: 16 << 20}); err != nil {
		t.Fatal(err)
	}
	m := storage.NewMem(dir)
	config, err := os.ReadFile(filepath.Join(dir, configName))
	if err == nil {
		err = errors.Join(storage.WriteSynced(m, filepath.Join(dir, configName), config),
			m.Mkdir(filepath.Join(dir, chunks.PacksFolder)), m.SyncDir(dir))
	}
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var images []*storage.Image
	recording := false
	o := testOptions(t)
	o.Logger = nil
	o.Storage = &storage.Faulty{Storage: m, Rule: func(c storage.Call) storage.Fault {
		mu.Lock()
		defer mu.Unlock()
		if recording && c.Op.Changes() {
			images = append(images, m.Snapshot())
		}
		return storage.Fault{}
	}}
	s, err := Open(t.Context(), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string][]byte{"a": {"pages-1.img": heap(11, 2<<20)}, "b": {"pages-1.img": memory(12, 1<<20)}}
	for name, files := range all {
		write(t, s, name, files)
	}
	mu.Lock()
	recording = true
	mu.Unlock()
	if res := mustOptimize(t, s, upkeep.OptimizeOptions{}); res.Rewritten == 0 {
		t.Errorf("%+v", res)
	}
	if res, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil || res.DeadChunks == 0 {
		t.Errorf("gc: %+v, %v", res, err)
	}
	images = append(images, m.Snapshot())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d crash points", len(images))
	for n := range 3 * len(images) {
		i := n % len(images)
		if err := os.RemoveAll(filepath.Join(dir, chunks.IndexFolder)); err != nil {
			t.Fatal(err)
		}
		o.Storage = images[i].Crash(uint64(n))
		if res, err := Repair(t.Context(), dir, o); err != nil || len(res.Lost) > 0 {
			t.Fatalf("crash point %d: repair: %+v, %v", i, res, err)
		}
		s, err := Open(t.Context(), dir, o)
		if err != nil {
			t.Fatalf("crash point %d: %v", i, err)
		}
		for name, files := range all {
			mustHold(t, s, name, files)
		}
		mustVerify(t, s, 0)
		if err := s.Close(); err != nil || t.Failed() {
			t.Fatalf("crash point %d: %v", i, err)
		}
	}
}
