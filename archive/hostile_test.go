package archive

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
)

// TestNothingIsWrittenOutside: an export goes through no symlink, whatever a checkpoint says.
func TestNothingIsWrittenOutside(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	e := exporter{root: root}
	for _, target := range []string{outside, "/", ".."} {
		if err := e.node(index.FileInfo{Path: "l", Mode: fs.ModeSymlink | 0o777, Target: target}); err != nil {
			t.Fatal(err)
		}
		for _, p := range []string{"l/d", "l" + outside + "/d"} {
			if err := e.node(index.FileInfo{Path: p, Mode: fs.ModeDir | 0o700}); err == nil {
				t.Errorf("%s -> %s: a folder was made", p, target)
			}
			if err := e.node(index.FileInfo{Path: p, Mode: fs.ModeSymlink | 0o777, Target: "x"}); err == nil {
				t.Errorf("%s -> %s: a link was made", p, target)
			}
		}
		for _, p := range []string{"l", "l/f"} {
			if f, err := e.create(p); err == nil {
				f.Close()
				t.Errorf("%s -> %s: a file was made", p, target)
			}
		}
		if err := root.Remove("l"); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(outside)
	if err != nil || len(entries) != 1 {
		t.Errorf("outside are %v, %v", entries, err)
	}
}
