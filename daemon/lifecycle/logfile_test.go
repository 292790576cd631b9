package lifecycle

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLogFileIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := OpenLogFile(path, 1000)
	if err != nil {
		t.Fatal(err)
	}
	line := []byte(strings.Repeat("x", 99) + "\n")
	for range 55 {
		if _, err := l.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{path: 500, path + ".1": 1000} {
		if b, err := os.ReadFile(name); err != nil || len(b) != want {
			t.Errorf("%s has %d bytes, want %d (%v)", name, len(b), want, err)
		}
	}
}
