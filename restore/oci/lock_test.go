package oci

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// calls gives a call for container web of a runtime's root folder, and the folder of its state.
func calls(t *testing.T, command string) (Call, string) {
	t.Helper()
	root := t.TempDir()
	return Parse([]string{"--root", root, command, "--force", "web"}), filepath.Join(root, "web")
}

func touch(t *testing.T, files ...string) {
	t.Helper()
	for _, f := range files {
		if err := os.MkdirAll(filepath.Dir(f), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDeleteOfOthers: a container that no restore has to do with is removed without a lock.
func TestDeleteOfOthers(t *testing.T) {
	call, folder := calls(t, Delete)
	for _, files := range [][]string{nil, {"exec.fifo"}, {"state.json"}} {
		for _, f := range files {
			touch(t, filepath.Join(folder, f))
		}
		if l, err := call.BeforeDelete(""); l != nil || err != nil {
			t.Errorf("with %v: %v, %v", files, l, err)
		}
	}
	if all, _ := os.ReadDir(filepath.Dir(folder)); len(all) > 1 {
		t.Errorf("left: %v", all)
	}
	for _, id := range []string{"..", ".", "", "a/b", "../web"} {
		if got := (Call{Command: Delete, ID: id}).stateFolder(""); got != "" {
			t.Errorf("%q is in %s", id, got)
		}
	}
}

// TestMountOfKilled: what is mounted in a state folder is unmounted, not removed; what else is there stays.
func TestMountOfKilled(t *testing.T) {
	call, folder := calls(t, Delete)
	rootfs := t.TempDir()
	touch(t, filepath.Join(rootfs, "file"), filepath.Join(rootfs, "crtools-put-root.used", "file"))
	if err := os.Mkdir(filepath.Join(rootfs, "crtools-put-root.abc"), 0o700); err != nil {
		t.Fatal(err)
	}
	mount := func() {
		t.Helper()
		at := filepath.Join(folder, "criu-root")
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(rootfs, at, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
	}
	mount()
	mount()                                       // twice
	touch(t, filepath.Join(folder, "state-1234")) // runc was killed while it wrote
	l, err := call.BeforeDelete("")
	if err != nil || there(folder) {
		t.Errorf("removed %v: %v", !there(folder), err)
	}
	if there(filepath.Join(rootfs, "crtools-put-root.abc")) || !there(filepath.Join(rootfs, "crtools-put-root.used")) {
		t.Error("not only criu's folder has been removed from the root")
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
	mount()
	touch(t, filepath.Join(folder, "state.json"))
	if _, err = call.BeforeDelete(""); err != nil || !there(filepath.Join(folder, "state.json")) {
		t.Errorf("the state of a container: %v", err)
	}
	if all, _ := os.ReadDir(filepath.Join(folder, "criu-root")); len(all) > 0 || !there(filepath.Join(rootfs, "file")) {
		t.Errorf("still mounted: %v", all)
	}
}

// TestRestoresTakeTurns: the lock is one process's, until its last file is closed or it is released.
func TestRestoresTakeTurns(t *testing.T) {
	call, _ := calls(t, Delete)
	first, err := call.Lock(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		second, err := call.Lock(t.Context(), "")
		if err == nil {
			err = second.Release()
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("two have the lock: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	ctx, interrupt := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, interrupt)
	if _, err := call.Lock(ctx, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted while it waits: %v", err)
	}
	if err := first.Release(); err != nil {
		t.Error(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// TestLogPipe: a caller's log that is a pipe which nobody reads does not stop a call.
func TestLogPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "log")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- Parse([]string{"--log", pipe, "restore", "web"}).Log(time.Now(), "failed") }()
	select {
	case err := <-done:
		if err == nil {
			t.Error("it was written to nobody")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for a reader")
	}
}
