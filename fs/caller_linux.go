package fs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// calledByCRIU says whether process pid, as seen from this process, is CRIU: its command name or its executable says
// so. 0 is a process that is not visible from here.
func calledByCRIU(pid uint32) bool {
	if pid == 0 {
		return false
	}
	proc := filepath.Join("/proc", strconv.FormatUint(uint64(pid), 10))
	comm, err := os.ReadFile(filepath.Join(proc, "comm"))
	if err != nil {
		return false
	}
	if strings.Contains(string(comm), "criu") {
		return true
	}
	exe, err := os.Readlink(filepath.Join(proc, "exe"))
	return err == nil && strings.Contains(filepath.Base(exe), "criu")
}

// runs says whether process pid, as seen from this process, has not ended; one that nobody has waited for yet has.
func runs(pid uint32) bool {
	_, err := os.Readlink(filepath.Join("/proc", strconv.FormatUint(uint64(pid), 10), "exe"))
	return err == nil
}
