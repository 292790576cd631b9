package preflight

import (
	"bufio"
	"bytes"
	"io"
	"strconv"
	"strings"
)

// stat is what /proc/PID/stat tells.
type stat struct {
	kernel                 bool // a thread of the kernel
	name                   string
	state                  byte
	parent, group, session int
	tty                    int // device number of the controlling terminal
}

// kernelThread is PF_KTHREAD of linux/sched.h: a thread of the kernel, which has no memory of its own.
const kernelThread = 0x00200000

// parseStat reads a stat file, see proc_pid_stat(5).
func parseStat(text []byte) (s stat, ok bool) {
	open, shut := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || shut < open {
		return s, false
	}
	f := strings.Fields(string(text[shut+1:]))
	if len(f) < 5 || len(f[0]) != 1 || f[0][0] <= ' ' || f[0][0] > '~' {
		return s, false
	}
	s.name, s.state = string(text[open+1:shut]), f[0][0]
	for i, into := range []*int{&s.parent, &s.group, &s.session, &s.tty} {
		n, err := strconv.Atoi(f[i+1])
		if err != nil {
			return stat{}, false
		}
		*into = n
	}
	if len(f) > 6 {
		flags, err := strconv.ParseUint(f[6], 10, 64)
		s.kernel = err == nil && flags&kernelThread != 0
	}
	return s, true
}

// eachField calls f for the lines "Name:\tvalue" of status and fdinfo files.
func eachField(r io.Reader, f func(name, value string)) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok {
			f(name, strings.TrimSpace(value))
		}
	}
	return lines.Err()
}

// maxEnvironment bounds what is read of an environment; the kernel's own bound is a quarter of the stack's.
const maxEnvironment = 4 << 20

// environment gives those variables of an environ file that are asked for. It holds what the process was started with.
func environment(r io.Reader, want ...string) (map[string]string, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxEnvironment))
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	for entry := range bytes.SplitSeq(text, []byte{0}) {
		name, value, ok := bytes.Cut(entry, []byte{'='})
		for _, w := range want {
			if ok && string(name) == w {
				env[w] = string(value)
			}
		}
	}
	return env, nil
}

// mount is a line of /proc/PID/mountinfo.
type mount struct {
	id          int
	root, point string
	kind        string
}

// eachMount calls f for the lines of a mountinfo file, see proc_pid_mountinfo(5).
func eachMount(r io.Reader, f func(mount)) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 8<<10), 256<<10) // overlay's options may be long
	for lines.Scan() {
		head, tail, ok := strings.Cut(lines.Text(), " - ")
		a, b := strings.Fields(head), strings.Fields(tail)
		if !ok || len(a) < 6 || len(b) < 1 {
			continue
		}
		id, err := strconv.Atoi(a[0])
		if err != nil {
			continue
		}
		f(mount{id: id, root: a[3], point: a[4], kind: b[0]})
	}
	return lines.Err()
}

// inode is the inode of a link such as "socket:[123]".
func inode(link, kind string) (uint64, bool) {
	s, ok := strings.CutPrefix(link, kind+":[")
	if !ok {
		return 0, false
	}
	s, ok = strings.CutSuffix(s, "]")
	n, err := strconv.ParseUint(s, 10, 64)
	return n, ok && err == nil
}

// file names a file by device and inode, as /proc/locks does.
type file struct {
	major, minor uint32
	inode        uint64
}

// lockedFiles gives the files that /proc/locks names.
func lockedFiles(r io.Reader) (map[file]bool, error) {
	locked := map[file]bool{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		for _, f := range strings.Fields(lines.Text()) {
			p := strings.Split(f, ":")
			if len(p) != 3 {
				continue
			}
			major, err1 := strconv.ParseUint(p[0], 16, 32)
			minor, err2 := strconv.ParseUint(p[1], 16, 32)
			ino, err3 := strconv.ParseUint(p[2], 10, 64)
			if err1 == nil && err2 == nil && err3 == nil {
				locked[file{uint32(major), uint32(minor), ino}] = true
			}
		}
	}
	return locked, lines.Err()
}

// tcpSocket is a line of /proc/net/tcp and tcp6.
type tcpSocket struct {
	state   int // 1: established, 10: listening
	waiting int // connections to accept
	remote  string
	inode   uint64
}

const (
	tcpTimeWait = 6
	tcpClosed   = 7
	tcpListens  = 10
)

// eachTCP calls f for the lines of /proc/net/tcp or tcp6.
func eachTCP(r io.Reader, f func(tcpSocket)) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		c := strings.Fields(lines.Text())
		if len(c) < 10 {
			continue
		}
		state, err1 := strconv.ParseUint(c[3], 16, 8)
		_, queue, _ := strings.Cut(c[4], ":")
		waiting, err2 := strconv.ParseUint(queue, 16, 31)
		ino, err3 := strconv.ParseUint(c[9], 10, 64)
		if err1 == nil && err2 == nil && err3 == nil {
			f(tcpSocket{state: int(state), waiting: int(waiting), remote: c[2], inode: ino})
		}
	}
	return lines.Err()
}
