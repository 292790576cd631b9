package inject

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Mapping is one line of /proc/PID/maps.
type Mapping struct {
	Start, End, Offset uint64
	Inode              uint64
	Perms              string // such as "r-xp"
	Path               string // as the kernel shows it, " (deleted)" and all
}

// Mappings reads a process's mappings, in the order of their addresses.
func Mappings(pid int) ([]Mapping, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []Mapping
	lines := bufio.NewScanner(f)
	lines.Buffer(make([]byte, 0, 8<<10), 64<<10) // a path has 4096 bytes, each of them four when escaped
	for lines.Scan() {
		if m, ok := parseMapping(lines.Text()); ok {
			all = append(all, m)
		}
	}
	return all, lines.Err()
}

// parseMapping reads START-END PERMS OFFSET DEVICE INODE PATH, see proc_pid_maps(5).
func parseMapping(line string) (m Mapping, ok bool) {
	var f [5]string
	rest := line
	for i := range f {
		f[i], rest, _ = strings.Cut(rest, " ")
	}
	start, end, ok := strings.Cut(f[0], "-")
	if !ok || len(f[1]) != 4 || f[4] == "" {
		return m, false
	}
	var errs [4]error
	m.Start, errs[0] = strconv.ParseUint(start, 16, 64)
	m.End, errs[1] = strconv.ParseUint(end, 16, 64)
	m.Offset, errs[2] = strconv.ParseUint(f[2], 16, 64)
	m.Inode, errs[3] = strconv.ParseUint(f[4], 10, 64)
	if errs != [4]error{} || m.End <= m.Start {
		return Mapping{}, false
	}
	m.Perms, m.Path = f[1], strings.TrimLeft(rest, " ")
	return m, true
}
