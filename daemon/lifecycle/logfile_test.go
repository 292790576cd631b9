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

// Where the full file cannot be renamed the log goes on in it, and is bounded again later.
func TestLogFileGoesOnWhereItCannotBeRenamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := OpenLogFile(path, 10)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.MkdirAll(path+".1/in the way", 0o700); err != nil {
		t.Fatal(err)
	}
	lines := func(want string) {
		t.Helper()
		if _, err := l.Write([]byte("12345678\n")); err != nil {
			t.Errorf("a line was dropped: %v", err)
		}
		if b, err := os.ReadFile(path); string(b) != want {
			t.Errorf("the log is %q, want %q (%v)", b, want, err)
		}
	}
	lines("12345678\n")
	lines("12345678\n12345678\n")
	if err := os.RemoveAll(path + ".1"); err != nil {
		t.Fatal(err)
	}
	lines("12345678\n")
	if err := os.Remove(path); err != nil { // as where a rename left it
		t.Fatal(err)
	}
	lines("12345678\n")
}
