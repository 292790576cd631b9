package pending

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// unremovable bind-mounts a record on itself, which keeps it from being removed until end is called.
func unremovable(t *testing.T, rec string, flags uintptr) (end func()) {
	t.Helper()
	if err := unix.Mount(rec, rec, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(rec, unix.MNT_DETACH) }) // if the test has failed before end
	if flags != 0 {
		if err := unix.Mount("", rec, "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		t.Helper()
		if err := unix.Unmount(rec, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// A process that has its memory lives on and is dumped also where its record cannot be removed, which is told. The
// record goes later.
func TestRecordStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vram")
	pid, _ := victim(t)
	c := New(path)
	at, err := c.Add(pid)
	if err != nil {
		t.Fatal(err)
	}
	end := unremovable(t, record(path, at), 0)
	if err := c.Remove(at); !errors.Is(err, unix.EBUSY) {
		t.Errorf("nobody is told that a record stays: %v", err)
	}
	who := func() (int, error) { return pid, nil }
	if err := Await(t.Context(), path, who); err != nil {
		t.Errorf("memory that is there: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	end()
	if pids := sweep(t, path); pids != nil || left(t, path) != 0 {
		t.Errorf("ended %v, whose memory is there; %d records are left", pids, left(t, path))
	}
}

// Where a record cannot be emptied either, its process is left alone as long as the helper lives, which then tries
// again.
func TestRecordStaysFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vram")
	pid, _ := victim(t)
	c := New(path)
	at, err := c.Add(pid)
	if err != nil {
		t.Fatal(err)
	}
	end := unremovable(t, record(path, at), unix.MS_RDONLY)
	if err := c.Remove(at); !errors.Is(err, unix.EROFS) {
		t.Errorf("nobody is told that a record stays: %v", err)
	}
	if pids := sweep(t, path); pids != nil {
		t.Errorf("ended %v, whose memory is there", pids)
	}
	who := func() (int, error) { return pid, nil }
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := Await(short, path, who); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a record that stays with its lock: %v", err)
	}
	end()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(record(path, at)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the record was not removed later: %v", err)
	}
	if pids := sweep(t, path); pids != nil {
		t.Errorf("ended %v, whose memory is there", pids)
	}
}

// An empty record is nobody's, also not that of a process that has ended and is not reaped.
func TestEmptyRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vram")
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	pid := cmd.Process.Pid
	c := New(path)
	at, err := c.Add(pid)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(c.Close(), os.Truncate(record(path, at), 0), cmd.Process.Kill(),
		unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := Await(t.Context(), path, func() (int, error) { return pid, nil }); err != nil {
		t.Errorf("a process that waits for no memory: %v", err)
	}
	if pids := sweep(t, path); pids != nil || left(t, path) != 0 {
		t.Errorf("ended %v; %d records are left", pids, left(t, path))
	}
}
