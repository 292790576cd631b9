package index

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunks"
)

// TestFirstOpenKilled leaves the index of a new store as its first open leaves it that is killed, file by file. There
// was nothing to lose, so it opens.
func TestFirstOpenKilled(t *testing.T) {
	made := filepath.Join(t.TempDir(), "store")
	must(t, Init(made, InitOptions{PackSize: 16 << 20}))
	must(t, openTestStore(t, made, testOptions(t)).Close())
	folder := filepath.Join(made, chunks.IndexFolder)
	for _, files := range [][]string{
		{"DISCARD"}, {"LOCK"}, {"DISCARD", "LOCK"}, {"DISCARD", "LOCK", "KEYREGISTRY"},
	} {
		dir := filepath.Join(t.TempDir(), "store")
		must(t, Init(dir, InitOptions{PackSize: 16 << 20}))
		for _, name := range files {
			b, _ := os.ReadFile(filepath.Join(folder, name)) // LOCK is gone after Close
			must(t, os.WriteFile(filepath.Join(dir, chunks.IndexFolder, name), b, 0o600))
		}
		s, err := Open(t.Context(), dir, testOptions(t))
		if err != nil {
			t.Errorf("killed when there was %v: %v", files, err)
			continue
		}
		write(t, s, "web", secretFiles())
		must(t, s.Close())
		mustHold(t, openTestStore(t, dir, testOptions(t)), "web", secretFiles())
	}
}
