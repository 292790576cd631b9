package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Present reports whether the machine has NVIDIA's driver. It loads nothing.
func Present() bool {
	for _, p := range []string{"/dev/nvidiactl", "/proc/driver/nvidia/version", "/sys/module/nvidia/version"} {
		if _, err := os.Stat(p); err == nil {
			return true
		}
	}
	return false
}

// moduleVersion is that of the kernel's module, "" when it does not say.
func moduleVersion() string {
	if text, err := os.ReadFile("/sys/module/nvidia/version"); err == nil {
		return strings.TrimSpace(string(text))
	}
	text, err := os.ReadFile("/proc/driver/nvidia/version")
	if err != nil {
		return ""
	}
	// NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue ...
	for _, f := range strings.Fields(string(text)) {
		if strings.Count(f, ".") >= 1 && strings.Trim(f, "0123456789.") == "" {
			return f
		}
	}
	return ""
}

func lastLine(p []byte) string {
	p = bytes.TrimSpace(p)
	return strings.TrimPrefix(string(p[bytes.LastIndexByte(p, '\n')+1:]), "gpucr-cuda: ")
}

// Tree lists a process and all its descendants, parents before children. ESRCH where there is no such process; other
// errors do not say that any has ended.
func Tree(root int) ([]int, error) { return tree("/proc", root) }

func tree(proc string, root int) ([]int, error) {
	dirs, err := os.ReadDir(proc)
	if err != nil {
		return nil, fmt.Errorf("cuda: list processes: %w", err)
	}
	children := map[int][]int{}
	found := false
	kernels := kernelThreads(proc)
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || kernels[pid] {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(proc, d.Name(), "stat"))
		if err != nil {
			if err = gone(err); err == nil || errors.Is(err, fs.ErrPermission) {
				continue // it ended, or is another user's
			}
			return nil, err
		}
		found = found || pid == root
		f := afterName(stat)
		if len(f) < 2 || f[0] == "Z" || f[0] == "X" {
			continue
		}
		if parent, err := strconv.Atoi(f[1]); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	if !found {
		return nil, fmt.Errorf("cuda: process %d: %w", root, syscall.ESRCH)
	}
	all := []int{root}
	for i := 0; i < len(all); i++ {
		kids := children[all[i]]
		slices.Sort(kids)
		all = append(all, kids...)
	}
	return all, nil
}

// ofKernel is PF_KTHREAD, a flag in stat; see include/linux/sched.h of Linux 6.18.
const ofKernel = 0x00200000

// kernelThreads lists the children of kthreadd, which are the kernel's own: a machine with 32 processors has hundreds,
// and a restore waits for each look at all processes. There are none in a container's /proc.
func kernelThreads(proc string) map[int]bool {
	const kthreadd = "2"
	const flags = 6
	stat, err := os.ReadFile(filepath.Join(proc, kthreadd, "stat"))
	f := afterName(stat)
	if err != nil || len(f) <= flags {
		return nil
	}
	if has, err := strconv.ParseUint(f[flags], 10, 64); err != nil || has&ofKernel == 0 {
		return nil // a process
	}
	list, err := os.ReadFile(filepath.Join(proc, kthreadd, "task", kthreadd, "children"))
	if err != nil {
		return nil
	}
	threads := map[int]bool{}
	for _, f := range strings.Fields(string(list)) {
		if pid, err := strconv.Atoi(f); err == nil {
			threads[pid] = true
		}
	}
	return threads
}

// afterName gives the fields of a stat file from the state on; the parent is the second. The name in parentheses before
// them may contain anything.
func afterName(stat []byte) []string {
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
}

// parent gives the parent of a process; 0 where there is none.
func parent(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	f := afterName(stat)
	if err != nil || len(f) < 2 {
		return 0
	}
	up, _ := strconv.Atoi(f[1])
	return up
}

// traces are what CUDA leaves on a process: open or mapped GPU devices, and the driver's library, which stays when the
// devices are given free.
type traces struct{ devices, libcuda bool }

func look(proc string, pid int) (t traces, err error) {
	dir := filepath.Join(proc, strconv.Itoa(pid))
	maps, err := os.ReadFile(filepath.Join(dir, "maps"))
	if err != nil {
		return t, gone(err)
	}
	t.libcuda = bytes.Contains(maps, []byte("/libcuda.so"))
	t.devices = bytes.Contains(maps, []byte(" /dev/nvidia"))
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return t, gone(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err == nil &&
			strings.HasPrefix(to, "/dev/nvidia") {
			t.devices = true
		}
	}
	return t, nil
}

// gone takes away the error of a process that has ended meanwhile.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return fmt.Errorf("cuda: %w", err)
}
