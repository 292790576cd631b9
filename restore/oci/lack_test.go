package oci

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// TestKilledLeavesUnseen: what a killed restore has made is not taken for ended where there are no descriptors to look
// at it. The call fails, and a later one ends it.
func TestKilledLeavesUnseen(t *testing.T) {
	call, _ := calls(t, Restore)
	work := t.TempDir()
	l, err := call.Lock(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	mark, err := l.Begin(work)
	if err != nil {
		t.Fatal(err)
	}
	noted, below := shell(t, "runc", t.TempDir())
	if _, err := l.Watch(noted); err != nil {
		t.Fatal(err)
	}
	working, _ := shell(t, "criu", work, mark)
	if err := os.Mkdir(filepath.Join(work, ".criu.cgyard.abc"), 0o700); err != nil {
		t.Fatal(err)
	}
	l = again(t, l, call)
	end := descriptors.Lack(t)
	err = l.Clear()
	end()
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("what nobody could look for is cleared: %v", err)
	}
	if err := errors.Join(l.Clear(), l.Release()); err != nil {
		t.Error(err)
	}
	for _, pid := range []int{noted, below, working} {
		if birth(t, pid) != 0 {
			t.Errorf("process %d of the restore goes on", pid)
		}
	}
	if there(filepath.Join(work, ".criu.cgyard.abc")) {
		t.Error("criu's folder stays")
	}
}

// TestReadersWithoutDescriptors: each look at a process says that it could not be done, for any may be the first to
// lack a descriptor.
func TestReadersWithoutDescriptors(t *testing.T) {
	pid, work := os.Getpid(), t.TempDir()
	folder := t.TempDir()
	defer descriptors.Lack(t)()
	for name, look := range map[string]func() error{
		"began":  func() error { _, err := began(pid); return err },
		"markOf": func() error { _, err := markOf(pid); return err },
		"cgroup": func() error { _, err := read(pid, "cgroup"); return err },
		"usedBy": func() error { _, err := usedBy(work); return err },
		"boot":   func() error { _, err := boot(); return err },
		"made":   func() error { _, err := note{Mark: "some", Began: 1}.made(nil); return err },
		"begin":  func() error { _, err := begin(folder, "some"); return err },
		"left": func() error {
			_, err := left([]note{{PID: pid, Began: 1}})
			return err
		},
	} {
		if err := look(); !errors.Is(err, unix.EMFILE) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
