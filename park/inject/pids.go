package inject

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Innermost is the pid of a process, or the id of a thread, in its own namespace; the same one where that is not known.
// See NSpid in proc_pid_status(5).
func Innermost(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return pid
	}
	for line := range strings.Lines(string(text)) {
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			f := strings.Fields(ids)
			if n, err := strconv.Atoi(f[len(f)-1]); err == nil {
				return n
			}
		}
	}
	return pid
}
