package index

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestUnbornFiles opens a store over what a process leaves that was killed while Badger made a file: an empty log, and a table that the manifest does not name
// yet, with some of its bytes.
func TestUnbornFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	if err := Init(dir, InitOptions{}); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), dir, testOptions(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"000900.sst":  bytes.Repeat([]byte{0x5a, 0, 0, 1}, 1000),
		"000901.sst":  nil,
		"00900.mem":   nil,
		"000900.vlog": nil,
	} {
		if err := os.WriteFile(filepath.Join(dir, "index", name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	openTestStore(t, dir, testOptions(t))
	left, err := filepath.Glob(filepath.Join(dir, "index", "00090?.sst"))
	if err != nil || len(left) > 0 {
		t.Errorf("half-made tables stay: %v, %v", left, err)
	}
}
