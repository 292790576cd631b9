// Package procfs reads what /proc tells of a process and that [os] does not.
package procfs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Stat returns the fields of a stat file of a process or thread, see proc_pid_stat(5), from the third on: state, parent
// and so on. There are none when it is gone.
func Stat(path string) []string {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	// The second is the name in parentheses, which may contain anything.
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
}

// Ended tells by what Stat gives whether a process has ended: it is gone, or is only to be reaped.
func Ended(stat []string) bool { return len(stat) == 0 || stat[0] == "Z" || stat[0] == "X" }

// Program returns the path of what a process runs, "" when it is dying or gone.
func Program(pid int) string {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return ""
	}
	return exe
}

// Name returns a process's name as the kernel keeps it, at most 15 bytes; "" when it is gone.
func Name(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSuffix(string(text), "\n")
}

// Children returns a process's children, those of all its threads.
func Children(pid int) (pids []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		for _, f := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// Memory returns how many bytes of memory a process has that no file holds for it: anonymous, shared, and swapped out.
func Memory(pid int) (bytes int64) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		var kb int64
		if name != "RssAnon" && name != "RssShmem" && name != "VmSwap" {
			continue
		}
		if n, _ := fmt.Sscanf(value, "%d kB", &kb); n == 1 {
			bytes += kb << 10
		}
	}
	return bytes
}

// Numbers returns the pids that a process has: in this /proc's namespace first, in its own last. There are none when it
// is gone.
func Numbers(pid int) (numbers []int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, "NSpid:")
		if !ok {
			continue
		}
		for _, f := range strings.Fields(rest) {
			if n, err := strconv.Atoi(f); err == nil {
				numbers = append(numbers, n)
			}
		}
	}
	return numbers
}
