package storage

import (
	"bytes"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReadOnlyChangesNothing(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	ok(t, WriteFile(Disk{}, name, []byte("content")))
	l, err := Disk{}.Lock(filepath.Join(dir, "lock"), "x")
	ok(t, err)
	ok(t, l.Close())

	s := ReadOnly{Disk{}}
	f, err := s.Open(name, Write|Direct)
	ok(t, err)
	defer f.Close()
	for what, call := range map[string]func() error{
		"create":   func() error { _, err := s.Open(filepath.Join(dir, "g"), Create); return err },
		"replace":  func() error { _, err := s.Open(name, Replace); return err },
		"mkdir":    func() error { return s.Mkdir(filepath.Join(dir, "d")) },
		"rename":   func() error { return s.Rename(name, filepath.Join(dir, "g")) },
		"remove":   func() error { return s.Remove(name) },
		"write":    func() error { _, err := f.WriteAt([]byte("x"), 0); return err },
		"writev":   func() error { return f.Writev([][]byte{[]byte("x")}, 0, true) },
		"truncate": func() error { return f.Truncate(0) },
		"punch":    func() error { return f.Punch(0, 4096) },
	} {
		t.Run(what, func(t *testing.T) { fails(t, call(), unix.EROFS) })
	}
	ok(t, f.Sync())
	ok(t, s.SyncDir(dir))
	got := make([]byte, 7)
	ok(t, f.Readv([][]byte{got}, 0, true))
	if !bytes.Equal(got, []byte("content")) {
		t.Errorf("it holds %q", got)
	}
	first, err := s.Lock(filepath.Join(dir, "lock"), "y")
	ok(t, err)
	second, err := s.Lock(filepath.Join(dir, "lock"), "z")
	ok(t, err)
	ok(t, first.Close())
	ok(t, second.Close())
}
