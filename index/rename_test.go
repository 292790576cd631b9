package index

import (
	"fmt"
	"sync"
	"testing"

	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
)

func TestRename(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	files := map[string][]byte{"pages-1.img": memory(1, 1<<20)}
	write(t, s, "a", files)
	write(t, s, "b", map[string][]byte{"pages-1.img": memory(2, 1<<20)})
	if err := s.Tag(t.Context(), "a", []string{"golden"}, nil); err != nil {
		t.Fatal(err)
	}
	child, err := s.Create(t.Context(), "child", drafts.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := child.SetParent("a"); err != nil {
		t.Fatal(err)
	}
	c, err := s.Checkpoint("a")
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.Open("pages-1.img")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Rename(t.Context(), "golden", "before-upgrade"); err != nil {
		t.Fatal(err)
	}
	if got, err := f.ReadAt(make([]byte, 100), 5000); got != 100 || err != nil {
		t.Errorf("an open file after a rename: %d, %v", got, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := child.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		ref, name string
		class     fault.Class
	}{
		{"a", "x", fault.NotFound}, {"b", "before-upgrade", fault.Exists}, {"b", "golden", fault.Exists},
		{"b", "b", fault.Exists}, {"b", "../x", fault.Invalid}, {"b", "", fault.Invalid},
	} {
		if err := s.Rename(t.Context(), tc.ref, tc.name); fault.ClassOf(err) != tc.class {
			t.Errorf("rename %s to %q: %v", tc.ref, tc.name, err)
		}
	}
	write(t, s, "a", map[string][]byte{"x": {1}}) // the old name is free
	check := func(s *Store) {
		t.Helper()
		mustHold(t, s, "before-upgrade", files)
		mustHold(t, s, "golden", files)
		mustHold(t, s, "a", map[string][]byte{"x": {1}})
		if c, err := s.Checkpoint("child"); err != nil || c.Info().Parent != "before-upgrade" {
			t.Errorf("the child's parent: %v", err)
		}
		if all, err := s.Names(t.Context()); err != nil || len(all) != 4 {
			t.Errorf("listed: %+v, %v", all, err)
		}
	}
	check(s)
	s = reopen(t, s)
	check(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Repair(t.Context(), s.Dir(), testOptions(t)); err != nil {
		t.Fatal(err)
	}
	check(openTestStore(t, s.Dir(), testOptions(t)))
}

// One name goes to one checkpoint, whoever asks for it at the same time.
func TestRenameBesideOthers(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	for round := range 20 {
		old, name := fmt.Sprintf("old-%d", round), fmt.Sprintf("new-%d", round)
		write(t, s, old, map[string][]byte{"x": {1}})
		write(t, s, old+"b", map[string][]byte{"x": {2}})
		won := make(chan byte, 3)
		var wg sync.WaitGroup
		for i, ref := range []string{old, old + "b"} {
			wg.Go(func() {
				if err := s.Rename(t.Context(), ref, name); err == nil {
					won <- byte(i + 1)
				} else if fault.ClassOf(err) != fault.Exists {
					t.Error(err)
				}
			})
		}
		wg.Go(func() {
			d, err := s.Create(t.Context(), name, drafts.CreateOptions{})
			if err == nil {
				won <- 3
				err = d.Abort()
			} else if fault.ClassOf(err) == fault.Exists {
				err = nil
			}
			if err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		close(won)
		var winners []byte
		for w := range won {
			winners = append(winners, w)
		}
		if len(winners) == 0 || len(winners) > 1 && winners[0] != 3 {
			t.Fatalf("round %d: %v have the name %s", round, winners, name)
		}
		if w := winners[len(winners)-1]; w != 3 {
			mustHold(t, s, name, map[string][]byte{"x": {w}})
		}
	}
	mustVerify(t, s, 0)
}

// TestRemoveIDs removes what was looked at, though its name has gone to another since.
func TestRemoveIDs(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	for _, name := range []string{"a", "b"} {
		write(t, s, name, map[string][]byte{"inventory.img": []byte(name)})
	}
	a, err := s.Checkpoint("a")
	if err != nil {
		t.Fatal(err)
	}
	id := a.Info().ID
	if err := s.Rename(t.Context(), "a", "old"); err != nil {
		t.Fatal(err)
	}
	if err := s.Rename(t.Context(), "b", "a"); err != nil {
		t.Fatal(err)
	}
	if err := s.RemoveIDs(t.Context(), []string{id[:8]}); fault.ClassOf(err) != fault.NotFound {
		t.Errorf("removed by half an id: %v", err)
	}
	if err := s.RemoveIDs(t.Context(), []string{id, id}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Checkpoint("old"); fault.ClassOf(err) != fault.NotFound {
		t.Errorf("it is still there: %v", err)
	}
	mustHold(t, s, "a", map[string][]byte{"inventory.img": []byte("b")})
}
