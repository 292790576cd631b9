// Package procfs reads what /proc tells of a process and that [os] does not.
package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Stat returns the fields of a stat file of a process or thread, see proc_pid_stat(5), from the third on: state, parent
// and so on. There are none when it is gone.
func Stat(path string) []string {
	fields, _ := ReadStat(path)
	return fields
}

// ReadStat is Stat for who must tell one that is gone from one that cannot be read now: of the former there are no
// fields and no error.
func ReadStat(path string) ([]string, error) {
	b, err := os.ReadFile(path)
	if Gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// The second is the name in parentheses, which may contain anything.
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])), nil
}

// Gone tells that an error of a file in a process's folder says that the process is gone. Other errors, such as a lack
// of descriptors, say nothing about it.
func Gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

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
func Children(pid int) []int {
	pids, _ := ReadChildren(pid)
	return pids
}

// ReadChildren is Children for who must know all: with an error there may be more. One that is gone has none.
func ReadChildren(pid int) (pids []int, err error) {
	tasks := fmt.Sprintf("/proc/%d/task", pid)
	threads, err := os.ReadDir(tasks)
	if err != nil && !Gone(err) {
		return nil, err
	}
	for _, thread := range threads {
		text, err := os.ReadFile(filepath.Join(tasks, thread.Name(), "children"))
		if err != nil && !Gone(err) {
			return pids, err
		}
		for _, f := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// PIDs returns all processes.
func PIDs() (pids []int, err error) {
	entries, err := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, err
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
func Numbers(pid int) []int {
	numbers, _ := ReadNumbers(pid)
	return numbers
}

// ReadNumbers is Numbers for who must tell one that is gone from one that cannot be read now: of the former there are
// no numbers and no error.
func ReadNumbers(pid int) (numbers []int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil && !Gone(err) {
		return nil, err
	}
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
	return numbers, nil
}

// Killed tells whether SIGKILL has come to a process that has not ended yet.
func Killed(pid int) (bool, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(text)) {
		name, set, _ := strings.Cut(line, ":")
		if name != "SigPnd" && name != "ShdPnd" {
			continue
		}
		signals, err := strconv.ParseUint(strings.TrimSpace(set), 16, 64)
		if err != nil {
			return false, err
		}
		if signals&(1<<(syscall.SIGKILL-1)) != 0 {
			return true, nil
		}
	}
	return false, nil
}
