package helper

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// rooted gives a thread's id whose root directory is dir, until the test ends.
func rooted(t *testing.T, dir string) int {
	t.Helper()
	tid, quit := make(chan int), make(chan struct{})
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			failed <- err
			return
		}
		if err := unix.Chroot(dir); err != nil {
			failed <- err
			return
		}
		tid <- unix.Gettid()
		<-quit
	}()
	select {
	case err := <-failed:
		t.Fatal(err)
	case id := <-tid:
		t.Cleanup(func() { close(quit) })
		return id
	}
	return 0
}

func watchSelf(t *testing.T) *watched {
	t.Helper()
	fd, err := unix.PidfdOpen(os.Getpid(), unix.PIDFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	w, err := watch(os.NewFile(uintptr(fd), "pidfd"), func() {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.stop)
	return w
}

// A task's file system is its own to arrange: what is made there stays there.
func TestThunkMemoryStaysInTheTasksRoot(t *testing.T) {
	for _, tc := range []struct {
		name  string
		links map[string]string // in the task's root
		made  string            // where the memory is then, in the task's root
	}{
		{"a folder", nil, "dev/shm"},
		{"an absolute link", map[string]string{"dev/shm": "HOST"}, ""},
		{"a link to a folder of its own", map[string]string{"dev/shm": "/own"}, "own"},
		{"a link upwards", map[string]string{"dev/shm": "../../../../../../../../../../own"}, "own"},
		{"a link through /proc", map[string]string{"dev/shm": "/proc/self/root/HOST"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			host, root := t.TempDir(), t.TempDir()
			for _, d := range []string{"dev", "own", "proc"} {
				if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := unix.Mount("/proc", filepath.Join(root, "proc"), "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Unmount(filepath.Join(root, "proc"), unix.MNT_DETACH) })
			for name, to := range tc.links {
				switch to {
				case "HOST":
					to = host
				case "/proc/self/root/HOST":
					to = "/proc/self/root" + host
				}
				if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
					t.Fatal(err)
				}
			}
			if tc.links == nil {
				if err := os.Mkdir(filepath.Join(root, "dev/shm"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			err := restoreThunkMemory(rooted(t, root), watchSelf(t), 8192, 4711)
			if got, _ := os.ReadDir(host); len(got) != 0 {
				t.Errorf("%d files were made outside the task's root", len(got))
			}
			if tc.made == "" {
				if err == nil {
					t.Error("a link that leads out is followed")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(filepath.Join(root, tc.made, filepath.Base(thunkPath)))
			if err != nil || len(b) != 8192 || binary.NativeEndian.Uint32(b) != 4711 {
				t.Errorf("memory of %d bytes: %v", len(b), err)
			}
			if _, err := os.Stat(filepath.Join(root, tc.made, filepath.Base(thunkSemaphore))); err != nil {
				t.Error(err)
			}
		})
	}
}

// A process that has ended may have left its pid, and what it stands for, to another.
func TestThunkMemoryOfAnEndedProcess(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "dev/shm"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := restoreThunkMemory(rooted(t, root), &watched{}, 4096, 1); err == nil {
		t.Error("memory was made for a process that has ended")
	}
	if got, _ := os.ReadDir(filepath.Join(root, "dev/shm")); len(got) != 0 {
		t.Errorf("%d files were made", len(got))
	}
}

// Whatever lies in the world's own folder, a dump neither waits for it nor fails.
func TestThunkMemoryThatIsNone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "memory")
	want := func(what string, size uint64, magic uint32) {
		t.Helper()
		if s, m, err := readThunk(path); err != nil || s != size || m != magic {
			t.Errorf("%s: %d bytes, magic %d, %v", what, s, m, err)
		}
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	want("nothing", 0, 0)
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	want("a link", 0, 0)
	if err := unix.Mkfifo(path, 0o666); err != nil {
		t.Fatal(err)
	}
	want("a pipe", 0, 0)
	if err := os.WriteFile(path, binary.NativeEndian.AppendUint32(nil, 4711), 0o666); err != nil {
		t.Fatal(err)
	}
	want("memory", 4, 4711)
}
