package archive

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
)

// TestExportedParent exports incremental dumps whose parent was given another name, while its old one is that of
// another checkpoint: each leads to its parent all the same, and comes back as one that builds on it. A dump into a
// mount has no link of its own.
func TestExportedParent(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	bring := func(s *index.Store, name, src string, o ImportOptions) index.Info {
		t.Helper()
		res, err := Import(ctx, s, name, src, o)
		if err != nil {
			t.Fatalf("import %s: %v", name, err)
		}
		return res.Checkpoint
	}
	bring(s, "base", dump(t), ImportOptions{})
	linked := dump(t)
	podman := t.TempDir()
	for _, err := range []error{
		os.Symlink("../base", filepath.Join(linked, "parent")),
		os.Rename(dump(t), filepath.Join(podman, "checkpoint")),
		os.Symlink("../../base", filepath.Join(podman, "checkpoint", "parent")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	bring(s, "linked", linked, ImportOptions{})
	bring(s, "podman", podman, ImportOptions{})
	d, err := s.Create(ctx, "mounted", index.CreateOptions{})
	if err == nil {
		err = d.SetParent("base")
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := d.Create("inventory.img", 0o644)
	if err == nil {
		_, err = f.WriteAt([]byte("inventory"), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := d.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Rename(ctx, "base", "older"); err != nil {
		t.Fatal(err)
	}
	bring(s, "base", dump(t), ImportOptions{})

	out, again := t.TempDir(), newStore(t)
	for _, name := range []string{"older", "base"} {
		if _, err := ExportDir(ctx, get(t, s, name), filepath.Join(out, name), ExportOptions{}); err != nil {
			t.Fatal(err)
		}
		bring(again, name, filepath.Join(out, name), ImportOptions{})
	}
	for name, want := range map[string]string{
		"linked/parent": "../older", "mounted/parent": "../older", "podman/checkpoint/parent": "../../older",
	} {
		name, link := filepath.Split(name)
		top := filepath.Dir(filepath.Clean(name) + "/x")
		if filepath.Base(top) == "checkpoint" {
			top = filepath.Dir(top)
		}
		c := get(t, s, top)
		if _, err := ExportDir(ctx, c, filepath.Join(out, top), ExportOptions{}); err != nil {
			t.Fatal(err)
		}
		if is, err := os.Readlink(filepath.Join(out, name, link)); err != nil || is != want {
			t.Errorf("%s leads to %q instead of %q: %v", name+link, is, want, err)
		}
		tar := filepath.Join(out, top+".tar")
		if _, err := ExportTarFile(ctx, c, tar, Plain, ExportOptions{}); err != nil {
			t.Fatal(err)
		}
		for as, src := range map[string]string{top: filepath.Join(out, top), top + "-tar": tar} {
			if info := bring(again, as, src, ImportOptions{}); info.Parent != "older" {
				t.Errorf("%s, brought back from %s, builds on %q", top, filepath.Base(src), info.Parent)
			}
		}
	}
}
