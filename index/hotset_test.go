package index

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/roots"
)

func TestHotSets(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	for _, name := range []string{"a", "b"} {
		write(t, s, name, map[string][]byte{"pages-1.img": memory(1, 1<<20)})
	}
	set := func(name, text string) error {
		return s.SetHotSet(name, 10, func(w io.Writer) error {
			_, err := io.WriteString(w, text)
			return err
		})
	}
	want := func(name, text string) {
		t.Helper()
		f, err := s.HotSet(name)
		if text == "" {
			if fault.ClassOf(err) != fault.NotFound {
				t.Errorf("%s has a hot set, or %v", name, err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if b, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size())); err != nil || string(b) != text {
			t.Errorf("the hot set of %s is %q (%v), not %q", name, b, err, text)
		}
	}
	want("a", "")
	for _, text := range []string{"first", "second"} {
		if err := errors.Join(set("a", text), set("b", text+" of b")); err != nil {
			t.Fatal(err)
		}
		want("a", text)
	}
	failed := errors.New("no more")
	if err := s.SetHotSet("a", 10, func(w io.Writer) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	if err := s.SetHotSet("a", 1<<60, func(w io.Writer) error { return nil }); fault.ClassOf(err) != fault.NoSpace {
		t.Errorf("got %v", err)
	}
	if err := set("c", "x"); fault.ClassOf(err) != fault.NotFound {
		t.Errorf("got %v", err)
	}
	s = reopen(t, s)
	want("a", "second")
	if err := s.SetProfile("a", []byte("profile")); err != nil {
		t.Fatal(err)
	}
	want("a", "")
	want("b", "second of b")
	if err := s.Remove(t.Context(), []string{"b"}); err != nil {
		t.Fatal(err)
	}
	// What a crash leaves goes when the store is opened.
	hot := filepath.Join(s.dir, roots.HotFolder)
	if err := errors.Join(set("a", "third"), os.WriteFile(filepath.Join(hot, "0123456789abcdef"), nil, 0o600),
		os.WriteFile(filepath.Join(hot, "0123456789abcdef-1.new"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	want("a", "third")
	if left, err := os.ReadDir(hot); err != nil || len(left) != 1 {
		t.Errorf("left are %v (%v)", left, err)
	}
}
