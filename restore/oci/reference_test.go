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
	images, dir := t.TempDir(), t.TempDir()
	if _, err := ReadReference(dir); !errors.Is(err, ErrNoReference) {
		t.Errorf("an empty folder: %v", err)
	}
	if err := Refer(dir, images, "web", "c1"); err == nil {
		t.Error("a dump without an inventory was referred to")
	}
	must(t, os.WriteFile(filepath.Join(images, inventory), []byte("one"), 0o600))
	must(t, os.WriteFile(filepath.Join(images, "pages-1.img"), make([]byte, 1<<20), 0o600))
	must(t, Refer(dir, images, "web", "c1"))
	r, err := ReadReference(dir)
	must(t, err)
	if r.Checkpoint != "web" || r.Container != "c1" {
		t.Errorf("%+v", r)
	}
	must(t, r.Verify(images))
	must(t, os.WriteFile(filepath.Join(images, inventory), []byte("two"), 0o600))
	if err := r.Verify(images); err == nil || !strings.Contains(err.Error(), "another dump") {
		t.Errorf("other images: %v", err)
	}
	// A folder that cannot take it all gets nothing.
	broken := t.TempDir()
	must(t, os.Mkdir(filepath.Join(broken, ReferenceFile), 0o755))
	must(t, os.WriteFile(filepath.Join(broken, ReferenceFile, "x"), nil, 0o600))
	if err := Refer(broken, images, "web", "c1"); err == nil {
		t.Error("a reference was written over a folder")
	}
	if _, err := os.Stat(filepath.Join(broken, inventory)); err == nil {
		t.Error("a part of what stands for the images stays")
	}
	must(t, Unrefer(dir))
	if left, _ := os.ReadDir(dir); len(left) > 0 {
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
	if l := s.Labels(); l["pod"] != "web-0" || l["container.name"] != "web/front end" || l["container"] != s.ID {
		t.Errorf("%v", l)
	}
	if got := strings.Join(s.Tags(), " "); got != "nightly golden" {
		t.Error(got)
	}
}
