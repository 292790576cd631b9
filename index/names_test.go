package index

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
)

// TestNamesThatNobodyMayChoose: one rule says everywhere what can become a name or a tag.
func TestNamesThatNobodyMayChoose(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "a", map[string][]byte{"x": {1}})
	for _, name := range []string{"--keep-last=1", "-", "-a", "0123456789abcdef", "a\x1b[2J", "a\n", "a/b", "..", ""} {
		_, created := s.Create(t.Context(), name, drafts.CreateOptions{})
		_, tagged := s.Create(t.Context(), "new", drafts.CreateOptions{Tags: []string{name}})
		said := fmt.Sprint(fault.HintOf(created), created)
		for way, err := range map[string]error{"create": created, "create with a tag": tagged,
			"tag": s.Tag(t.Context(), "a", []string{name}, nil), "rename": s.Rename(t.Context(), "a", name)} {
			if fault.ClassOf(err) != fault.Invalid || fmt.Sprint(fault.HintOf(err), err) != said {
				t.Errorf("%s %q: %v, and another way: %s", way, name, err, said)
			}
		}
	}
	for _, name := range []string{"_a", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF", "a-", "20260102"} {
		if err := ValidName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestNamesOfEarlierVersions: what earlier versions let be chosen can be read, found and removed.
func TestNamesOfEarlierVersions(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	content := memory(1, 1<<20)
	write(t, s, "a", map[string][]byte{"pages-1.img": content})
	write(t, s, "b", map[string][]byte{"pages-1.img": memory(2, 1<<20)})
	const name, tag, id = "--keep-last=1", "-golden", "0123456789abcdef"
	for from, to := range map[string]string{"a": name, "b": id} {
		r, pb, err := s.roots.Sealed("test", from)
		if err != nil {
			t.Fatal(err)
		}
		pb = proto.CloneOf(pb)
		pb.Name = to
		if from == "a" {
			pb.Tags = []string{tag}
		}
		payload, err := manifest.EncodeCheckpoint(pb)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.chunks.Commit([]chunks.Put{{Key: manifest.RootKey(r.ID), Payload: payload}}); err != nil {
			t.Fatal(err)
		}
	}
	s = reopen(t, s)
	for _, ref := range []string{name, tag} {
		c, err := s.Checkpoint(ref)
		if err != nil {
			t.Fatal(err)
		}
		f, err := c.Open("pages-1.img")
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(content))
		if _, err := f.ReadAt(got, 0); err != nil || !slices.Equal(got, content) {
			t.Errorf("read %s: %v", ref, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Tag(t.Context(), name, []string{"new"}, []string{tag}); err != nil {
		t.Error(err)
	}
	if err := s.Rename(t.Context(), id, "renamed"); err != nil {
		t.Error(err)
	}
	if err := s.Remove(t.Context(), []string{name}); err != nil {
		t.Error(err)
	}
}
