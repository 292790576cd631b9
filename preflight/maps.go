package preflight

import (
	"bufio"
	"io"
	"strconv"
	"strings"
)

// mapping is one line of /proc/PID/maps.
type mapping struct {
	start, end, offset uint64
	write, shared      bool
	path               string // as the kernel shows it, " (deleted)" taken off
	deleted            bool
}

// eachMapping calls f for the lines of a maps file until it fails. Lines that are none are left out.
func eachMapping(r io.Reader, f func(mapping) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 8<<10), 64<<10) // a path has 4096 bytes, each of them four when escaped
	for lines.Scan() {
		if m, ok := parseMapping(lines.Text()); ok {
			if err := f(m); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

// parseMapping reads START-END PERMS OFFSET DEVICE INODE PATH, see proc_pid_maps(5).
func parseMapping(line string) (m mapping, ok bool) {
	var f [5]string
	rest := line
	for i := range f {
		f[i], rest, _ = strings.Cut(rest, " ")
	}
	start, end, ok := strings.Cut(f[0], "-")
	if !ok || len(f[1]) != 4 || f[4] == "" {
		return m, false
	}
	var errs [3]error
	m.start, errs[0] = strconv.ParseUint(start, 16, 64)
	m.end, errs[1] = strconv.ParseUint(end, 16, 64)
	m.offset, errs[2] = strconv.ParseUint(f[2], 16, 64)
	if errs != [3]error{} || m.end <= m.start {
		return mapping{}, false
	}
	m.write, m.shared = f[1][1] == 'w', f[1][3] == 's'
	m.path = strings.TrimLeft(rest, " ")
	m.path, m.deleted = strings.CutSuffix(m.path, " (deleted)")
	return m, true
}
