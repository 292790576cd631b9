// Package procfs reads what /proc tells of a process and that [os] does not.
package procfs

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// Stat returns the fields of a stat file of a process or thread, see proc_pid_stat(5), from the third on: state, parent and so on. There are none when it is gone.
func Stat(path string) []string {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	// The second is the name in parentheses, which may contain anything.
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
}

// Program returns the path of what a process runs, "" when it is dying or gone.
func Program(pid int) string {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return ""
	}
	return exe
}
