package index

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
)

// TestForgedIndexFiles: files in the index's folder that Badger would map whole, or end the process over, are damage,
// and repair makes another index.
func TestForgedIndexFiles(t *testing.T) { // not beside others: a SIGBUS is every index's
	sparse := func(size int64) func(string) error {
		return func(name string) error {
			if err := os.WriteFile(name, []byte("no log of Badger's, whatever it looks like"), 0o600); err != nil {
				return err
			}
			return os.Truncate(name, size)
		}
	}
	for name, forge := range map[string]func(string) error{
		"DISCARD":         func(name string) error { os.Remove(name); return os.Mkdir(name, 0o700) },
		"4294967295.vlog": sparse(100),
		"000777.vlog":     sparse(8 << 30),
		"00777.mem":       sparse(8 << 30),
		"00778.mem":       func(name string) error { return os.Mkdir(name, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestStore(t, testOptions(t))
			write(t, s, "a", map[string][]byte{"f": []byte("content")})
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if err := forge(filepath.Join(s.dir, chunks.IndexFolder, name)); err != nil {
				t.Fatal(err)
			}
			for _, readOnly := range []bool{true, false} {
				o := s.o
				o.ReadOnly = readOnly
				again, err := Open(t.Context(), s.dir, o)
				switch {
				case err == nil && readOnly:
					again.Close()
				case err == nil:
					t.Fatal("it is opened")
				case fault.ClassOf(err) != fault.Corrupt:
					t.Errorf("read only %v: %v", readOnly, err)
				}
			}
			mustRepair(t, s)
			s = openTestStore(t, s.dir, s.o)
			mustHold(t, s, "a", map[string][]byte{"f": []byte("content")})
		})
	}
}
