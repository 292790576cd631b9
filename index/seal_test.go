package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/roots"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// TestTagBesideRemove: what is removed stays removed.
func TestTagBesideRemove(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "a", map[string][]byte{"f": memory(1, 1<<20)})
	write(t, s, "b", map[string][]byte{"f": memory(2, 1<<20)})
	join := func() {}
	s.roots.Hooks.Updating = func() {
		join = beside(func() {
			if err := s.Remove(context.Background(), []string{"a"}); err != nil {
				t.Error(err)
			}
		})
	}
	if err := s.Tag(t.Context(), "a", []string{"nightly"}, nil); err != nil {
		t.Fatal(err)
	}
	join()
	s.upkeep.Hooks, s.drafts.Hooks = upkeep.Hooks{}, drafts.Hooks{}
	s.roots.Hooks, s.chunks.Hooks = roots.Hooks{}, chunks.Hooks{}
	for range 2 {
		if _, err := s.Checkpoint("a"); fault.ClassOf(err) != fault.NotFound {
			t.Errorf("a is removed, and: %v", err)
		}
		if _, err := s.List(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil {
			t.Error(err)
		}
		s = reopen(t, s)
	}
}

// TestTagBesideRemoveManyTimes leaves the order of their commits to chance.
func TestTagBesideRemoveManyTimes(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	const rounds = 100
	for i := range rounds {
		name := fmt.Sprint("c", i)
		write(t, s, name, map[string][]byte{"f": []byte(name)})
		var both sync.WaitGroup
		both.Go(func() {
			if err := s.Tag(context.Background(), name, []string{"t" + name}, nil); err != nil &&
				fault.ClassOf(err) != fault.NotFound {
				t.Error(err)
			}
		})
		both.Go(func() {
			if err := s.SetProfile(name, []byte("profile")); err != nil && fault.ClassOf(err) != fault.NotFound {
				t.Error(err)
			}
		})
		if err := s.Remove(t.Context(), []string{name}); err != nil {
			t.Error(err)
		}
		both.Wait()
	}
	for range 2 {
		if names, err := s.Names(t.Context()); err != nil || len(names) > 0 {
			t.Errorf("%d of %d that were removed are back, %v", len(names), rounds, err)
		}
		left := 0
		if err := s.chunks.DB.Metas("", func(key string, _ uint64, payload []byte, _ error) error {
			if len(payload) > 0 {
				left++
			}
			return nil
		}); err != nil || left > 0 {
			t.Errorf("%d keys of removed checkpoints are left, %v", left, err)
		}
		s = reopen(t, s)
	}
}

// TestWritesWhileSealing: a write that is acknowledged is in what is sealed.
func TestWritesWhileSealing(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(f *drafts.DraftFile) error{
		"write":    func(f *drafts.DraftFile) error { _, err := f.WriteAt([]byte("late"), 10); return err },
		"append":   func(f *drafts.DraftFile) error { _, err := f.WriteAt([]byte("late"), f.Size()); return err },
		"truncate": func(f *drafts.DraftFile) error { return f.Truncate(7) },
		"punch":    func(f *drafts.DraftFile) error { return f.PunchHole(0, 5000) },
	} {
		for _, size := range []int{100, 300000} {
			t.Run(fmt.Sprint(name, size), func(t *testing.T) {
				s := newTestStore(t, testOptions(t))
				content := memory(3, size)
				d := create(t, s, "a", drafts.CreateOptions{})
				fill(t, d, map[string][]byte{"f": content})
				f, err := d.Open("f")
				if err != nil {
					t.Fatal(err)
				}
				var failed error
				join := func() {}
				s.drafts.Hooks.Sealing = func() { join = beside(func() { failed = change(f) }) }
				mustSeal(t, d)
				join()
				if failed == nil {
					t.Error("a write was acknowledged that came too late")
				} else if fault.ClassOf(failed) != fault.ReadOnly {
					t.Error(failed)
				}
				mustHold(t, s, "a", map[string][]byte{"f": content})
				got := make([]byte, size)
				if n, err := f.ReadAt(got, 0); n != size || !bytes.Equal(got, content) {
					t.Errorf("read %d bytes of the file that was open, %v", n, err)
				}
				// The open file outlives the checkpoint, as others do.
				if err := s.Remove(t.Context(), []string{"a"}); err != nil {
					t.Error(err)
				}
				if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil {
					t.Error(err)
				}
				s.reading.DropCache()
				clear(got)
				if n, err := f.ReadAt(got, 0); n != size || !bytes.Equal(got, content) {
					t.Errorf("read %d bytes of the file that was open, after rm and gc, %v", n, err)
				}
				if err := f.Close(); err != nil {
					t.Error(err)
				}
				if names := snapshotNames(s); len(names) > 0 {
					t.Errorf("left: %v", names)
				}
			})
		}
	}
}

func snapshotNames(s *Store) (names []string) {
	_, pbs := s.roots.Snapshot()
	for _, pb := range pbs {
		names = append(names, pb.Name)
	}
	return names
}

func tagsOf(t testing.TB, s *Store) map[string][]string {
	t.Helper()
	list, err := s.Names(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, i := range list {
		out[i.Name] = i.Tags
	}
	return out
}

// TestATagNamesOneCheckpoint: sealing takes the tags of a draft from others, as Tag does.
func TestATagNamesOneCheckpoint(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	ctx := t.Context()
	a := create(t, s, "a", drafts.CreateOptions{Tags: []string{"nightly", "first"}})
	b := create(t, s, "b", drafts.CreateOptions{Tags: []string{"nightly"}})
	mustSeal(t, a)
	if c, err := s.Checkpoint("nightly"); err != nil || c.Info().Name != "a" {
		t.Errorf("a draft stands in the way of a sealed one: %v", err)
	}
	fill(t, b, map[string][]byte{"f": memory(1, 100)})
	mustSeal(t, b)
	check := func() {
		t.Helper()
		if tags := tagsOf(t, s); fmt.Sprint(tags) != "map[a:[first] b:[nightly]]" {
			t.Errorf("%v", tags)
		}
		if c, err := s.Checkpoint("nightly"); err != nil || c.Info().Name != "b" {
			t.Errorf("nightly: %v", err)
		}
	}
	check()
	s = reopen(t, s)
	check()
	s = rebuilt(t, s)
	check()
	for _, tc := range []struct {
		name string
		tags []string
	}{{"nightly", nil}, {"c", []string{"b"}}, {"c", []string{"c"}}} {
		if _, err := s.Create(ctx, tc.name, drafts.CreateOptions{Tags: tc.tags}); fault.ClassOf(err) != fault.Exists ||
			fault.HintOf(err) == "" {
			t.Errorf("%s with tags %v: %v", tc.name, tc.tags, err)
		}
	}
	// A draft's tag is its own until it is sealed; a draft that is given up takes nothing.
	c := create(t, s, "c", drafts.CreateOptions{Tags: []string{"nightly"}})
	if err := s.Tag(ctx, "a", []string{"nightly"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.Abort(); err != nil {
		t.Fatal(err)
	}
	if tags := tagsOf(t, s); fmt.Sprint(tags) != "map[a:[first nightly] b:[]]" {
		t.Errorf("%v", tags)
	}
}

// TestATagOfTwo is about stores in which two checkpoints bear one tag.
func TestATagOfTwo(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	ctx := t.Context()
	write(t, s, "a", nil)
	write(t, s, "b", nil)
	for _, name := range []string{"a", "b"} {
		_, pb, err := s.roots.Sealed("test", name)
		if err != nil {
			t.Fatal(err)
		}
		pb = proto.CloneOf(pb)
		pb.Tags = []string{"nightly"}
		payload, err := manifest.EncodeCheckpoint(pb)
		puts := []chunks.Put{{Key: manifest.RootKey(pb.Id), Payload: payload}}
		if err = errors.Join(err, s.chunks.Commit(puts)); err != nil {
			t.Fatal(err)
		}
	}
	s = reopen(t, s)
	if _, err := s.Checkpoint("nightly"); fault.ClassOf(err) != fault.Invalid || fault.HintOf(err) == "" {
		t.Errorf("either was taken: %v", err)
	}
	if err := s.Remove(ctx, []string{"nightly"}); fault.ClassOf(err) != fault.Invalid {
		t.Errorf("either was removed: %v", err)
	}
	if err := s.Tag(ctx, "a", []string{"nightly"}, nil); err != nil {
		t.Fatal(err)
	}
	if c, err := s.Checkpoint("nightly"); err != nil || c.Info().Name != "a" {
		t.Errorf("after the tag was put on a: %v", err)
	}
}

// TestCloseBesideWork: closing ends what runs, or makes it fail.
func TestCloseBesideWork(t *testing.T) {
	t.Parallel()
	for range 10 {
		s := newTestStore(t, testOptions(t))
		write(t, s, "a", map[string][]byte{"f": memory(1, 2<<20)})
		d := create(t, s, "b", drafts.CreateOptions{})
		f, err := d.Create("f", 0o600)
		if err != nil {
			t.Fatal(err)
		}
		var work sync.WaitGroup
		begun := make(chan struct{}, 4)
		for _, fn := range []func(i int) error{
			func(i int) error { _, err := f.WriteAt(memory(uint64(i), 200000), int64(i)*200000); return err },
			func(int) error { _, err := s.Verify(context.Background(), upkeep.VerifyOptions{}); return err },
			func(int) error { _, err := s.GC(context.Background(), upkeep.GCOptions{}); return err },
			func(i int) error { return s.Tag(context.Background(), "a", []string{fmt.Sprint("t", i)}, nil) },
		} {
			work.Go(func() {
				for i := 0; ; i++ {
					err := fn(i)
					if i == 0 {
						begun <- struct{}{}
					}
					if err != nil {
						return
					}
				}
			})
		}
		for range 4 {
			<-begun
		}
		if err := s.Close(); fault.ClassOf(err) != fault.InUse {
			t.Errorf("closing with a draft open: %v", err)
		}
		work.Wait()
		s = openTestStore(t, s.dir, s.o)
		mustVerify(t, s, 0)
	}
}
