package fs

import (
	"errors"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// calledByCRIU says whether process pid, as seen from this process, is CRIU: its command name or its executable says
// so. 0 is a process that is not visible from here. With an error that is not known.
func calledByCRIU(pid uint32) (bool, error) {
	if pid == 0 {
		return false, nil
	}
	proc := filepath.Join("/proc", strconv.FormatUint(uint64(pid), 10))
	comm, err := os.ReadFile(filepath.Join(proc, "comm"))
	if gone(err) {
		return false, nil
	}
	if err != nil || strings.Contains(string(comm), "criu") {
		return err == nil, err
	}
	exe, err := os.Readlink(filepath.Join(proc, "exe"))
	return err == nil && strings.Contains(filepath.Base(exe), "criu"), nil
}

// lookFor is how long dumpedBy looks again at a process that cannot be looked at.
const lookFor = time.Second

// dumpedBy says whether process pid is the CRIU that dumps. Where that cannot be told, for want of descriptors perhaps,
// it is the one that wrote the inventory: a complete dump that nobody seals is lost.
func (img *image) dumpedBy(pid uint32) bool {
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		criu, err := calledByCRIU(pid)
		if err == nil {
			return criu
		}
		if time.Since(begin) > lookFor {
			break
		}
	}
	img.mu.RLock()
	defer img.mu.RUnlock()
	return pid == img.dumper
}

// runs says whether process pid, as seen from this process, has not ended; one that nobody has waited for yet has. It
// is true while that is not known.
func runs(pid uint32) bool {
	_, err := os.Readlink(filepath.Join("/proc", strconv.FormatUint(uint64(pid), 10), "exe"))
	return !gone(err)
}

// gone tells that an error of a file in a process's folder says that the process is gone. Other errors, such as a lack
// of descriptors, say nothing about it.
func gone(err error) bool { return errors.Is(err, iofs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }
