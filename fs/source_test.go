package fs

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAskWhose(t *testing.T) {
	s := newStore(t)
	sealed(t, s, "A", map[string][]byte{"x": noise(1, 100), "d/y": noise(2, 100)})
	sealed(t, s, "B", map[string][]byte{"x": noise(3, 100)})
	srv := mounted(t, s, Options{})
	must(t, os.Mkdir(filepath.Join(srv.Dir(), ".checkpoints", "new"), 0o755))
	bound := t.TempDir()
	must(t, unix.Mount(filepath.Join(srv.Dir(), ".checkpoints", "A"), bound, "", unix.MS_BIND, ""))
	defer unix.Unmount(bound, unix.MNT_DETACH)
	for dir, want := range map[string]string{
		srv.Dir(): "B", filepath.Join(srv.Dir(), ".checkpoints", "A"): "A", bound: "A",
		filepath.Join(srv.Dir(), ".checkpoints"): "", filepath.Join(srv.Dir(), ".checkpoints", "new"): "",
		filepath.Join(bound, "d"): "", t.TempDir(): "", "/proc": "",
	} {
		w, ok, err := SourceOf(dir)
		if err != nil || ok != (want != "") || w.Checkpoint != want {
			t.Errorf("%s: %+v, %v, %v; want %q", dir, w, ok, err, want)
		}
		if ok {
			c, err := s.Checkpoint(want)
			must(t, err)
			if w.ID != c.Info().ID || w.Store != s.Dir() {
				t.Errorf("%s: %+v", dir, w)
			}
		}
	}
	if _, _, err := SourceOf(filepath.Join(srv.Dir(), "nothing")); err == nil {
		t.Error("what does not exist is somebody's")
	}
}
