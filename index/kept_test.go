package index

import (
	"testing"

	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
)

// restoring tells whether Names says so of a checkpoint.
func restoring(t *testing.T, s *Store, name string) bool {
	t.Helper()
	all, err := s.Names(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if c.Name == name {
			return c.Restoring
		}
	}
	t.Fatalf("there is no %s", name)
	return false
}

// A checkpoint that is kept is not removed, alone or with others, nor what it builds on, until all who keep it have
// let it go.
func TestKeptIsNotRemoved(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	for _, name := range []string{"base", "other"} {
		write(t, s, name, map[string][]byte{"f": []byte(name)})
	}
	d, err := s.Create(t.Context(), "next", drafts.CreateOptions{})
	if err == nil {
		err = d.SetParent("base")
	}
	if err == nil {
		_, err = d.Seal(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Checkpoint("next")
	if err != nil {
		t.Fatal(err)
	}
	var releases []func()
	for range 2 {
		release, err := c.Keep()
		if err != nil {
			t.Fatal(err)
		}
		releases = append(releases, release)
	}
	if err := s.Rename(t.Context(), "next", "renamed"); err != nil {
		t.Error(err)
	}
	for range releases {
		for _, names := range [][]string{{"renamed"}, {"base"}, {"base", "renamed"}, {"other", "renamed"}} {
			if err := s.Remove(t.Context(), names); fault.ClassOf(err) != fault.InUse || fault.HintOf(err) == "" {
				t.Errorf("%v: %v", names, err)
			}
		}
		if err := s.RemoveIDs(t.Context(), []string{c.Info().ID}); fault.ClassOf(err) != fault.InUse {
			t.Errorf("by id: %v", err)
		}
		if !restoring(t, s, "renamed") || restoring(t, s, "base") || restoring(t, s, "other") {
			t.Error("Names tells of another one that is kept")
		}
		releases[0]()
		releases[0]() // counts once
		releases = releases[1:]
	}
	if restoring(t, s, "renamed") {
		t.Error("it is kept for ever")
	}
	if err := s.Remove(t.Context(), []string{"base", "renamed"}); err != nil {
		t.Error(err)
	}
	if _, err := c.Keep(); fault.ClassOf(err) != fault.NotFound {
		t.Errorf("kept when it was gone: %v", err)
	}
}

// Whose removal has begun is not kept any more.
func TestKeepWhileRemoved(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "a", map[string][]byte{"f": []byte("a")})
	c, err := s.Checkpoint("a")
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.Open("f") // leaves a part of it in the store
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	asked := false
	s.roots.Hooks.Removing = func() {
		asked = true
		if _, err := c.Keep(); fault.ClassOf(err) != fault.NotFound {
			t.Errorf("while it is removed: %v", err)
		}
	}
	if err := s.Remove(t.Context(), []string{"a"}); err != nil || !asked {
		t.Fatal(err, asked)
	}
	if _, err := c.Keep(); fault.ClassOf(err) != fault.NotFound {
		t.Errorf("while a file of it is open: %v", err)
	}
}
