package index

import (
	"crypto/sha256"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/keyring"
)

// TestRingOfAnotherStore puts keys of another store, which the same people can open, in the place of either or both
// files: nothing of the store changes until its own are back, and nothing is lost then.
func TestRingOfAnotherStore(t *testing.T) {
	other := newSecretStore(t)
	for name, files := range map[string][]string{
		"keyring": {keyring.FileName}, "its copy": {ringCopy}, "both": {keyring.FileName, ringCopy},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newSecretStore(t)
			s := openTestStore(t, dir, secretOptions(t))
			write(t, s, "web", secretFiles())
			must(t, s.Close())
			was := map[string][]byte{}
			for _, f := range files {
				b, err := os.ReadFile(filepath.Join(dir, f))
				must(t, err)
				was[f] = b
				b, err = os.ReadFile(filepath.Join(other, f))
				must(t, err)
				must(t, os.WriteFile(filepath.Join(dir, f), b, 0o600))
			}
			before := contents(t, dir)
			o := secretOptions(t)
			if s, err := Open(t.Context(), dir, o); err == nil {
				s.Close()
				t.Error("it opens")
			}
			if _, err := Repair(t.Context(), dir, o); err == nil || HintOf(err) == "" {
				t.Errorf("repair ends with %v, hint %q", err, HintOf(err))
			}
			if _, err := ChangeRing(t.Context(), dir, func(*keyring.Ring) error { return nil }); err == nil &&
				len(files) == 1 {
				t.Error("keys are changed")
			}
			o.ReadOnly = true
			if s, err := Open(t.Context(), dir, o); err == nil {
				s.Close()
				t.Error("it opens for reading")
			}
			for name, b := range contents(t, dir) {
				if is, ok := before[name]; ok && is != b {
					t.Errorf("%s is another file", name)
				}
			}
			for f, b := range was {
				must(t, os.WriteFile(filepath.Join(dir, f), b, 0o600))
			}
			_, err := Repair(t.Context(), dir, secretOptions(t))
			must(t, err)
			s = openTestStore(t, dir, secretOptions(t))
			mustHold(t, s, "web", secretFiles())
			must(t, s.Close())
		})
	}
}

// contents gives the sums of what a store has outside of its index.
func contents(t *testing.T, dir string) map[string][32]byte {
	t.Helper()
	sums := map[string][32]byte{}
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || filepath.Base(filepath.Dir(p)) == chunks.IndexFolder {
			return err
		}
		b, err := os.ReadFile(p)
		sums[p] = sha256.Sum256(b)
		return err
	}))
	return sums
}
