package cuda

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// fakeProc makes a folder that looks like /proc: stat and maps by pid, and where descriptors point.
func fakeProc(t *testing.T, stat, maps map[string]string, fds map[string][]string) string {
	t.Helper()
	dir := t.TempDir()
	for pid, text := range stat {
		d := filepath.Join(dir, pid)
		if err := os.MkdirAll(filepath.Join(d, "fd"), 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"stat": text, "maps": maps[pid]} {
			if err := os.WriteFile(filepath.Join(d, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for i, to := range fds[pid] {
			if err := os.Symlink(to, filepath.Join(d, "fd", string(rune('0'+i)))); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func TestLook(t *testing.T) {
	dir := fakeProc(t,
		map[string]string{
			"10": "10 (a) b) R 1 10", "11": "11 (python3) S 10 10", "12": "12 (x) S 11 10", "13": "13 (x) Z 11 10",
			"9": "9 (late) S 12 10", "20": "20 (other) S 1 20",
		},
		map[string]string{
			"11": "7f00-7f01 rw-s 00000000 00:05 3 /dev/nvidia0\n",
			"12": "7f00-7f01 r-xp 0 00:05 3 /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04\n",
			"20": "7f00-7f01 r-xp 0 00:05 3 /usr/lib/libcudart.so.13\n",
		},
		map[string][]string{"9": {"/dev/null", "/dev/nvidiactl"}, "20": {"/dev/null", "/tmp/dev/nvidia0"}})
	pids, err := tree(dir, 10)
	if err != nil || !slices.Equal(pids, []int{10, 11, 12, 9}) {
		t.Fatalf("tree %v, %v", pids, err)
	}
	for pid, want := range map[int]traces{10: {}, 11: {devices: true}, 12: {libcuda: true}, 9: {devices: true}, 20: {},
		999: {}} {
		if got, err := look(dir, pid); err != nil || got != want {
			t.Errorf("process %d: %+v, %v; want %+v", pid, got, err, want)
		}
	}
	if _, err := tree(dir, 999); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the tree of no process: %v", err)
	}
	// What cannot be read has not ended.
	stat := filepath.Join(dir, "12", "stat")
	if err := errors.Join(os.Remove(stat), os.Mkdir(stat, 0o700)); err != nil {
		t.Fatal(err)
	}
	if pids, err := tree(dir, 10); err == nil || errors.Is(err, syscall.ESRCH) {
		t.Errorf("tree %v without a process that cannot be read, %v", pids, err)
	}
}

// Threads of the kernel are not looked at one by one; what a process with the number of their parent has forked is.
func TestTreeWithoutKernelThreads(t *testing.T) {
	const marked = "12 (x) S 10 10 10 0 -1 0"
	for flags, want := range map[string][]int{"2129984": {10}, "4194304": {10, 12}} {
		dir := fakeProc(t, map[string]string{
			"2": "2 (kthreadd) S 0 0 0 0 -1 " + flags, "10": "10 (a) S 1 10", "12": marked,
		}, nil, nil)
		list := filepath.Join(dir, "2", "task", "2")
		if err := os.MkdirAll(list, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(list, "children"), []byte("12 13"), 0o600); err != nil {
			t.Fatal(err)
		}
		if pids, err := tree(dir, 10); err != nil || !slices.Equal(pids, want) {
			t.Errorf("process 2 with flags %s: tree %v, %v; want %v", flags, pids, err, want)
		}
	}
}
