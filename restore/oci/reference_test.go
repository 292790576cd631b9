package oci

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestReference(t *testing.T) {
	images, dir := t.TempDir(), filepath.Join(t.TempDir(), "made")
	if _, err := ReadReference(dir); !errors.Is(err, ErrNoReference) {
		t.Errorf("no folder: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(images, inventory), []byte("one"), 0o600))
	must(t, os.WriteFile(filepath.Join(images, "pages-1.img"), make([]byte, 1<<20), 0o600))
	p, err := Reserve(dir, "web", "c1")
	must(t, err)
	must(t, p.Refer(images))
	r, err := ReadReference(dir)
	must(t, err)
	if r.Checkpoint != "web" || r.Container != "c1" {
		t.Errorf("%+v", r)
	}
	must(t, r.Verify(images))
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("%v stand for the images", left)
	}
	must(t, os.WriteFile(filepath.Join(images, inventory), []byte("two"), 0o600))
	if err := r.Verify(images); err == nil || !strings.Contains(err.Error(), "another dump") {
		t.Errorf("other images: %v", err)
	}
}

// TestReserve: until a dump is complete a folder stands for what it stood for before, and says what it may become.
func TestReserve(t *testing.T) {
	images, dir := t.TempDir(), t.TempDir()
	p, err := Reserve(dir, "first", "c1")
	must(t, err)
	if r, err := ReadPending(dir); err != nil || r.Checkpoint != "first" || !r.Pending() {
		t.Errorf("a dump began: %+v %v", r, err)
	}
	if _, err := ReadReference(dir); !errors.Is(err, ErrNoReference) {
		t.Errorf("a dump began: %v", err)
	}
	if err := p.Refer(images); err == nil {
		t.Error("a dump without an inventory was referred to")
	}
	must(t, p.GiveUp())
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%v stay", left)
	}
	must(t, os.WriteFile(filepath.Join(images, inventory), []byte("one"), 0o600))
	p, err = Reserve(dir, "first", "c1")
	must(t, err)
	must(t, p.Refer(images))
	if _, err = Reserve(dir, "killed", "c1"); err != nil {
		t.Fatal(err)
	}
	p, err = Reserve(dir, "second", "c1")
	must(t, err)
	must(t, p.GiveUp())
	if r, err := ReadReference(dir); err != nil || r.Checkpoint != "first" {
		t.Errorf("two dumps failed: %+v %v", r, err)
	}
	if r, err := ReadPending(dir); err != nil || r.Checkpoint != "killed" {
		t.Errorf("a dump was killed, and one failed: %+v %v", r, err)
	}
	// A folder that cannot take it all gets nothing.
	broken := t.TempDir()
	must(t, os.Mkdir(filepath.Join(broken, ReferenceFile), 0o755))
	if _, err := Reserve(broken, "web", "c1"); err == nil {
		t.Error("a reference would be written over a folder")
	}
	if left, _ := os.ReadDir(broken); len(left) != 1 {
		t.Errorf("%v stay", left)
	}
}

func FuzzReference(f *testing.F) {
	f.Add([]byte(`{"version":1,"checkpoint":"web","inventory_sha256":"` + strings.Repeat("ab", 32) + `"}`))
	f.Add([]byte(`{"version":2}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, err := ParseReference(text); err == nil && (r.Checkpoint == "" || len(r.Inventory) != 64) {
			t.Errorf("%q was taken for %+v", text, r)
		}
	})
}

func TestNames(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	s := State{ID: strings.Repeat("0123456789abcdef", 4)}
	s.Annotations = map[string]string{TagAnnotation: "nightly, golden"}
	if got := s.Name(now); got != "0123456789ab-20260102T030405.000006Z" {
		t.Error(got)
	}
	s.Annotations["io.kubernetes.cri.container-name"] = "web/front end"
	s.Annotations["io.kubernetes.pod.name"] = "web-0"
	if got := s.Name(now); got != "web-front-end-20260102T030405.000006Z" {
		t.Error(got)
	}
	// Whatever a container is called, its checkpoint has a name that a store takes.
	for called, want := range map[string]string{
		"日本": "container-", strings.Repeat("x", 300): "xxx", "--": "container-",
	} {
		odd := State{ID: "c1", Annotations: map[string]string{"gpucr-fs/name": called}}
		if got := odd.Name(now); !strings.HasPrefix(got, want) || len(got) > 128 {
			t.Errorf("a container called %s: %s", called, got)
		}
	}
	if l := s.Labels(); l["pod"] != "web-0" || l["container.name"] != "web/front end" || l["container"] != s.ID {
		t.Errorf("%v", l)
	}
	if got := strings.Join(s.Tags(), " "); got != "nightly golden" {
		t.Error(got)
	}
}
