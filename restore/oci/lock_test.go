package oci

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
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

// TestDeleteOfOthers: a container that no restore has to do with is removed without a lock. Where there is none that is
// complete, a restore may begin before the runtime looks for it: it has to wait.
func TestDeleteOfOthers(t *testing.T) {
	call, folder := calls(t, Delete)
	for _, c := range []struct {
		files  []string
		locked bool
	}{{nil, true}, {[]string{"exec.fifo"}, true}, {[]string{stateFile}, false}} {
		for _, f := range c.files {
			touch(t, filepath.Join(folder, f))
		}
		l, err := call.BeforeDelete("")
		if err != nil || (l != nil) != c.locked {
			t.Errorf("with %v: %v, %v", c.files, l, err)
		}
		if l != nil {
			if err := l.Release(); err != nil {
				t.Error(err)
			}
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
	case <-time.After(time.Minute):
		t.Fatal("it waits for a reader")
	}
}

// TestLockOfOthers: what another user may have put in the place of a lock's file is refused, and stays as it is. It
// could name processes of others to be ended.
func TestLockOfOthers(t *testing.T) {
	for name, put := range map[string]func(file string) error{
		"of another user": func(f string) error {
			return errors.Join(os.WriteFile(f, []byte("x"), 0o600), os.Chown(f, 4711, 0))
		},
		"all can write": func(f string) error {
			return errors.Join(os.WriteFile(f, []byte("x"), 0o600), os.Chmod(f, 0o666))
		},
		"a pipe":   func(f string) error { return unix.Mkfifo(f, 0o600) },
		"a folder": func(f string) error { return os.Mkdir(f, 0o700) },
		"a link":   func(f string) error { return os.Symlink("/etc/hostname", f) },
		"two names": func(f string) error {
			return errors.Join(os.WriteFile(f+".2", []byte("x"), 0o600), os.Link(f+".2", f))
		},
	} {
		t.Run(name, func(t *testing.T) {
			call, folder := calls(t, Delete)
			file := folder + lockSuffix
			if err := put(file); err != nil {
				t.Fatal(err)
			}
			l, err := call.Lock(t.Context(), "")
			if err == nil || !strings.Contains(err.Error(), "remove "+file) {
				t.Errorf("%v, %v", l, err)
			}
			if st, err := os.Lstat(file); err != nil || st.Mode().IsRegular() && st.Size() != 1 {
				t.Errorf("it is changed: %v, %v", st, err)
			}
		})
	}
}

// TestMountsInRoot: what the administrator has mounted within a container's root stays mounted there when the
// runtime's mount of that root is undone, also where mounts are shared, as systemd has them.
func TestMountsInRoot(t *testing.T) {
	call, folder := calls(t, Delete)
	disk := t.TempDir()
	if err := unix.Mount("none", disk, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(disk, unix.MNT_DETACH) })
	if err := unix.Mount("", disk, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	rootfs, data := filepath.Join(disk, "rootfs"), t.TempDir()
	volume, at := filepath.Join(rootfs, "volume"), filepath.Join(folder, mountPoint)
	touch(t, filepath.Join(data, "file"))
	for _, dir := range []string{volume, at} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount(data, volume, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(rootfs, at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
	l, err := call.BeforeDelete("")
	if err != nil || there(folder) {
		t.Fatalf("the runtime's mount stays: %v", err)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
	if !there(filepath.Join(volume, "file")) {
		t.Error("the volume in the container's root is not mounted any more")
	}
}

// TestDeleteWithoutRoom: containers are removed on a full disk, which has no room for a lock, and where the runtime has
// no folder. No restore can have begun there.
func TestDeleteWithoutRoom(t *testing.T) {
	call, folder := calls(t, Delete)
	root := filepath.Dir(folder)
	if err := unix.Mount("none", root, "tmpfs", 0, "nr_inodes=3"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(root, unix.MNT_DETACH) })
	at := filepath.Join(folder, mountPoint)
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(t.TempDir(), at, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if l, err := call.BeforeDelete(""); l != nil || err != nil {
		t.Errorf("on a full disk: %v, %v", l, err)
	}
	if err := unix.Unmount(at, unix.MNT_DETACH); err == nil {
		t.Error("the runtime's mount stays")
	}
	missing := filepath.Join(t.TempDir(), "missing")
	if l, err := Parse([]string{"--root", missing, Delete, "web"}).BeforeDelete(""); l != nil || err != nil ||
		there(missing) {
		t.Errorf("without a folder: %v, %v; it is made: %v", l, err, there(missing))
	}
}
