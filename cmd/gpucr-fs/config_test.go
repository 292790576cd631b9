package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSettingsOfOthers: the configuration that nobody named is refused where others can change it, and one that the
// caller named is not.
func TestSettingsOfOthers(t *testing.T) {
	root := (&app{}).root()
	file := filepath.Join(t.TempDir(), "config.json")
	if s, err := readSettings(file, false, root); err != nil || len(s.all) > 0 {
		t.Errorf("without a file: %v, %v", s, err)
	}
	for mode, want := range map[os.FileMode]string{0o600: "", 0o644: "", 0o666: "chmod go-w", 0o664: "chmod go-w"} {
		if err := os.WriteFile(file, []byte(`{"criu": "/opt/criu"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		s, err := readSettings(file, false, root)
		if want == "" && (err != nil || s.all["criu"] != "/opt/criu") {
			t.Errorf("of mode %o: %v, %v", mode, s.all, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("of mode %o: %v", mode, err)
		}
		if s, err := readSettings(file, true, root); err != nil || s.all["criu"] != "/opt/criu" {
			t.Errorf("of mode %o, named: %v, %v", mode, s.all, err)
		}
	}
}
