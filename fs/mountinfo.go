package fs

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// fsType is what /proc/self/mountinfo calls this file system.
const fsType = "fuse." + subtype

const subtype = "gpucr-fs"

// mountEntry is one line of mountinfo.
type mountEntry struct {
	dev    string // "major:minor"
	point  string // mount point, unescaped
	fstype string
	source string // unescaped; the store's folder for fsType
}

// parseMountinfo reads the format of /proc/PID/mountinfo (proc_pid_mountinfo(5)): fields 3 and 5, then, after a lone
// "-", the type and the source.
func parseMountinfo(r io.Reader) ([]mountEntry, error) {
	var out []mountEntry
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		head, tail, ok := strings.Cut(sc.Text(), " - ")
		h, t := strings.Fields(head), strings.Fields(tail)
		if !ok || len(h) < 6 || len(t) < 2 {
			return nil, fmt.Errorf("unexpected line in mountinfo: %q", sc.Text())
		}
		out = append(
			out,
			mountEntry{dev: h[2], point: unescapeMount(h[4]), fstype: unescapeMount(t[0]), source: unescapeMount(t[1])},
		)
	}
	return out, sc.Err()
}

// unescapeMount undoes the kernel's octal escapes of space, tab, newline and backslash.
func unescapeMount(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(v))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// topMount gives the mount that is uppermost at point.
func topMount(entries []mountEntry, point string) (mountEntry, bool) {
	for i := len(entries) - 1; i >= 0; i-- {
		if entries[i].point == point {
			return entries[i], true
		}
	}
	return mountEntry{}, false
}
