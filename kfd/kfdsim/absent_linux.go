package kfdsim

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Bits of an entry of /proc/PID/pagemap.
const (
	pageSwapped = 1 << 62
	pagePresent = 1 << 63
)

// absent reports whether a page of a process's range is still to come by userfaultfd.
// The driver cannot wait for it: its hmm_range_fault fails there, where it brings any
// other page that is not present.
func absent(pid int, addr, size uint64) (bool, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return false, err
	}
	defer f.Close()
	entries := make([]byte, 8*(size/pageSize))
	if _, err := f.ReadAt(entries, int64(addr/pageSize)*8); err != nil {
		return false, fmt.Errorf("pages of process %d at %#x: %w", pid, addr, err)
	}
	var missing []uint64
	for i := uint64(0); i < size/pageSize; i++ {
		if binary.NativeEndian.Uint64(entries[8*i:])&(pagePresent|pageSwapped) == 0 {
			missing = append(missing, addr+i*pageSize)
		}
	}
	if len(missing) == 0 {
		return false, nil
	}
	return watched(pid, missing)
}

// noMemory tells whether an error of absent says that the process has ended: its memory goes first, and /proc gives
// nothing of it from then on.
func noMemory(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist)
}

// watched reports whether one of these addresses, ascending, lies in a mapping whose
// missing pages userfaultfd brings.
func watched(pid int, addrs []uint64) (bool, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return false, err
	}
	defer f.Close()
	inside := false
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var lo, hi uint64
		line := lines.Text()
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok {
			if inside && strings.Contains(flags+" ", " um ") {
				return true, nil
			}
		} else if n, _ := fmt.Sscanf(line, "%x-%x ", &lo, &hi); n == 2 {
			for len(addrs) > 0 && addrs[0] < lo {
				addrs = addrs[1:]
			}
			inside = len(addrs) > 0 && addrs[0] < hi
		}
	}
	return false, lines.Err()
}
