package index

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gpucr/gpucr-fs/index/accounting"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/roots"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

func TestGCGivesBackWhatItPromises(t *testing.T) {
	t.Parallel()
	s := newTestStore(t, testOptions(t))
	ctx := context.Background()
	shared := memory(1, 20<<20)
	all := map[string]map[string][]byte{}
	for i := range 4 {
		name := fmt.Sprint("c", i)
		all[name] = map[string][]byte{"pages-1.img": append(bytes.Clone(shared), memory(uint64(10+i), 20<<20)...),
			"inventory.img": []byte(name)}
		write(t, s, name, all[name])
	}
	if err := s.Remove(ctx, []string{"c0", "c1", "c3"}); err != nil {
		t.Fatal(err)
	}
	before, err := accounting.DiskUsage(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	dry, err := s.GC(ctx, upkeep.GCOptions{DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	if dry.Reclaimed != 0 || dry.Reclaimable < 20<<20 {
		t.Errorf("dry run: %+v", dry)
	}
	res, err := s.GC(ctx, upkeep.GCOptions{})
	if err != nil {
		t.Fatal(err)
	}
	after, err := accounting.DiskUsage(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	if freed := before - after; float64(freed) < 0.95*float64(dry.Reclaimable) {
		t.Errorf("%d bytes came back of %d promised (%+v)", freed, dry.Reclaimable, res)
	}
	mustHold(t, s, "c2", all["c2"])
	s = reopen(t, s)
	mustHold(t, s, "c2", all["c2"])
	if again, err := s.GC(ctx, upkeep.GCOptions{}); err != nil || again.Reclaimed > 1<<20 || again.DeadChunks != 0 {
		t.Errorf("a second collection: %+v, %v", again, err)
	}
	// What was given back is stored anew when it comes by again.
	write(t, s, "c0", all["c0"])
	mustHold(t, s, "c0", all["c0"])
	mustVerify(t, s, 0)
}

func mustVerify(t testing.TB, s *Store, problems int) upkeep.VerifyResult {
	t.Helper()
	v, err := s.Verify(context.Background(), upkeep.VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(v.Problems) != problems {
		t.Errorf("%d problems, want %d: %+v", len(v.Problems), problems, v.Problems)
	}
	return v
}

func TestGCSparesDraftsAndOpenFiles(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	ctx := context.Background()
	old := map[string][]byte{"pages-1.img": memory(1, 10<<20)}
	write(t, s, "old", old)
	f := openFile(t, s, "old", "pages-1.img")
	d, err := s.Create(ctx, "new", drafts.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fresh := map[string][]byte{"pages-1.img": memory(2, 10<<20)}
	fill(t, d, fresh)
	if err := s.Remove(ctx, []string{"old"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GC(ctx, upkeep.GCOptions{}); err != nil {
		t.Fatal(err)
	}
	s.reading.DropCache()
	got := make([]byte, f.Size())
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, old["pages-1.img"]) {
		t.Errorf("an open file of a removed checkpoint: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := d.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	if res, err := s.GC(ctx, upkeep.GCOptions{}); err != nil || res.Reclaimed < 5<<20 {
		t.Errorf("after closing: %+v, %v", res, err)
	}
	mustHold(t, s, "new", fresh)
	mustVerify(t, s, 0)
}

func TestIncompleteIsListedAndCollected(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	ctx := context.Background()
	write(t, s, "whole", map[string][]byte{"f": memory(1, 3<<20)})
	d, err := s.Create(ctx, "half", drafts.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, d, map[string][]byte{"pages-1.img": memory(2, 30<<20)})
	if err := s.Close(); fault.ClassOf(err) != fault.InUse {
		t.Errorf("closing with a draft open: %v", err)
	}
	s = openTestStore(t, s.dir, s.o)
	names, _ := s.Names(ctx)
	if len(names) != 2 || names[1].Name != "half" || names[1].State != roots.Incomplete {
		t.Errorf("%+v", names)
	}
	if _, err := s.Create(ctx, "half", drafts.CreateOptions{}); fault.ClassOf(err) != fault.Exists {
		t.Errorf("%v", err)
	}
	res, err := s.GC(ctx, upkeep.GCOptions{})
	if err != nil || len(res.Incomplete) != 1 {
		t.Errorf("%+v, %v", res, err)
	}
	if names, _ := s.Names(ctx); len(names) != 1 {
		t.Errorf("%+v", names)
	}
	mustVerify(t, s, 0)
}

func TestFlippedBytesAreFoundAndNeverRead(t *testing.T) {
	t.Parallel()
	s := newTestStore(t, testOptions(t))
	files := map[string][]byte{"pages-1.img": memory(1, 12<<20)}
	write(t, s, "a", files)
	path := s.chunks.Packs.PackPath(1)
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		off := r.Int64N(st.Size())
		flip(t, path, off)
		v := mustVerify(t, s, 1)
		if p := v.Problems[0]; p.Checkpoint != "a" || p.File != "pages-1.img" {
			t.Errorf("the problem names %+v", p)
		}
		s.reading.DropCache()
		if got, err := read(s, "a", "pages-1.img"); fault.ClassOf(err) != fault.Corrupt {
			t.Errorf("byte %d flipped, read %d bytes: %v", off, len(got), err)
		}
		flip(t, path, off)
	}
	s.reading.DropCache()
	mustHold(t, s, "a", files)
	mustVerify(t, s, 0)
	// The same content coming by again heals what was damaged.
	flip(t, path, 5)
	mustVerify(t, s, 1)
	write(t, s, "b", files)
	s.reading.DropCache()
	mustHold(t, s, "a", files)
	mustVerify(t, s, 0)
}

func flip(t testing.TB, path string, off int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x10
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
}

func TestRepair(t *testing.T) {
	t.Parallel()
	build := func(t *testing.T) (*Store, map[string]map[string][]byte) {
		s := newTestStore(t, testOptions(t))
		all := map[string]map[string][]byte{}
		for i := range 3 {
			name := fmt.Sprint("c", i)
			all[name] = map[string][]byte{"pages-1.img": memory(uint64(i), 14<<20), "inventory.img": []byte(name)}
			write(t, s, name, all[name])
		}
		if err := s.Tag(t.Context(), "c1", []string{"keep"}, nil); err != nil {
			t.Fatal(err)
		}
		if err := s.SetProfile("c1", []byte("profile")); err != nil {
			t.Fatal(err)
		}
		if err := s.Remove(t.Context(), []string{"c0"}); err != nil {
			t.Fatal(err)
		}
		delete(all, "c0")
		if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		return s, all
	}
	check := func(t *testing.T, s *Store, all map[string]map[string][]byte) {
		s = openTestStore(t, s.dir, s.o)
		names, _ := s.Names(t.Context())
		if len(names) != len(all) {
			t.Errorf("%d checkpoints came back, want %d: %+v", len(names), len(all), names)
		}
		for name, files := range all {
			mustHold(t, s, name, files)
		}
		if _, err := s.Checkpoint("keep"); err != nil {
			t.Error(err)
		}
		if p, err := s.Profile("c1"); string(p) != "profile" {
			t.Errorf("%q, %v", p, err)
		}
		mustVerify(t, s, 0)
		write(t, s, "later", map[string][]byte{"f": memory(77, 5<<20)})
		mustVerify(t, s, 0)
	}
	t.Run("index deleted", func(t *testing.T) {
		s, all := build(t)
		if err := os.RemoveAll(filepath.Join(s.dir, chunks.IndexFolder)); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), s.dir, s.o); fault.ClassOf(err) != fault.Corrupt || fault.HintOf(err) == "" {
			t.Errorf("opened without an index: %v", err)
		}
		if res, err := Repair(t.Context(), s.dir, s.o); err != nil || res.Checkpoints != 2 || len(res.Lost) > 0 {
			t.Errorf("%+v, %v", res, err)
		}
		check(t, s, all)
	})
	t.Run("journal damaged", func(t *testing.T) {
		s, all := build(t)
		journals, _ := filepath.Glob(filepath.Join(s.dir, chunks.PacksFolder, "*.journal"))
		for i, path := range journals {
			st, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			flip(t, path, st.Size()*int64(i+1)/int64(len(journals)+1))
		}
		if res, err := Repair(t.Context(), s.dir, s.o); err != nil || len(res.Lost) > 0 {
			t.Errorf("%+v, %v", res, err)
		}
		check(t, s, all)
	})
	t.Run("nothing wrong", func(t *testing.T) {
		s, all := build(t)
		if res, err := Repair(t.Context(), s.dir, s.o); err != nil || len(res.Lost) > 0 {
			t.Errorf("%+v, %v", res, err)
		}
		check(t, s, all)
	})
}

func TestUsageAndDiff(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	model, heapA, heapB := memory(1, 8<<20), memory(2, 4<<20), memory(3, 4<<20)
	write(t, s, "a", map[string][]byte{"pages-1.img": append(bytes.Clone(model), heapA...), "core-1.img": []byte("a")})
	write(t, s, "b", map[string][]byte{"pages-1.img": append(bytes.Clone(heapB), model...), "core-1.img": []byte("a"),
		"extra": []byte("b")})
	list, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if i.Unique+i.Shared+i.Zero != i.Logical {
			t.Errorf("%s: %d unique, %d shared and %d zero bytes are not %d", i.Name, i.Unique, i.Shared, i.Zero,
				i.Logical)
		}
		if i.Shared < 4<<20 || i.Unique < 1<<20 {
			t.Errorf("%+v", i)
		}
	}
	u, err := s.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if u.Stored >= list[0].Stored+list[1].Stored || u.Disk < u.Stored || u.Logical != list[0].Logical+list[1].Logical {
		t.Errorf("%+v", u)
	}
	diffs, err := s.Diff(t.Context(), "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range diffs {
		switch d.Path {
		case "core-1.img":
			if d.Shared != 1 || d.Unique != 0 {
				t.Errorf("%+v", d)
			}
		case "extra":
			if d.SizeA != -1 || d.Unique != 1 {
				t.Errorf("%+v", d)
			}
		case "pages-1.img":
			if d.Shared != list[1].Shared || d.Shared+d.Unique+d.Zero != d.SizeB {
				t.Errorf("%+v, want %d shared", d, list[1].Shared)
			}
		}
	}
}

// TestTagsWhileOthersRead is for the race detector: everything that looks at root records, while they change.
func TestTagsWhileOthersRead(t *testing.T) {
	t.Parallel()
	s := newTestStore(t, testOptions(t))
	ctx := context.Background()
	files := map[string][]byte{"f": memory(1, 1<<20)}
	for _, name := range []string{"a", "b"} {
		write(t, s, name, files)
	}
	done := make(chan struct{})
	var lookers, taggers sync.WaitGroup
	for _, look := range []func() error{
		func() error { _, err := s.List(ctx); return err },
		func() error { _, err := s.Usage(ctx); return err },
		func() error { _, err := s.Diff(ctx, "a", "b"); return err },
		func() error { _, err := read(s, "a", "f"); return err },
		func() error { return s.SetProfile("b", []byte("p")) },
		func() error { _, err := s.Verify(ctx, upkeep.VerifyOptions{}); return err },
	} {
		lookers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := look(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for _, name := range []string{"a", "a", "b"} {
		prefix := fmt.Sprint(name, "-", rand.Uint64())
		taggers.Go(func() {
			for i := range 10 {
				if err := s.Tag(ctx, name, []string{fmt.Sprint(prefix, i)}, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	taggers.Wait()
	close(done)
	lookers.Wait()
	names, err := s.Names(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := len(names[0].Tags), len(names[1].Tags); a != 20 || b != 10 {
		t.Errorf("%d and %d tags, want 20 and 10", a, b)
	}
}
