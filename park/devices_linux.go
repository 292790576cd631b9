package park

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/park/inject"
)

// devices is what the paths of NVIDIA's begin with.
const devices = "/dev/nvidia"

// Leftovers are what a process has of its ancestors' GPUs.
type Leftovers struct {
	Descriptors []int
	Mappings    []Span // neighbours joined
}

// Span is a range of addresses.
type Span struct{ Start, End uint64 }

func (l Leftovers) none() bool { return len(l.Descriptors)+len(l.Mappings) == 0 }

// Inherited finds what process pid has of NVIDIA's devices, without touching it. The error tells why it may be its
// own. family are the processes of its tree.
func Inherited(pid int, family []int) (Leftovers, error) {
	l, err := leftovers(pid)
	if err != nil || l.none() {
		return l, err
	}
	s, err := readStat(pid)
	if err != nil {
		return l, err
	}
	if !s.forked {
		return l, fmt.Errorf("process %d has executed a program since it was forked", pid)
	}
	var open []opened // by ancestors
	used := false
	for up := s.parent; slices.Contains(family, up); {
		a, err := leftovers(up)
		if err != nil {
			return l, err
		}
		used = used || !a.none()
		for _, fd := range a.Descriptors {
			open = append(open, opened{up, fd})
		}
		next, err := readStat(up)
		if err != nil {
			return l, err
		}
		up = next.parent
	}
	if !used {
		return l, fmt.Errorf("no process of the tree that %d descends from uses a GPU", pid)
	}
	for _, fd := range l.Descriptors {
		if i, err := sameFile(opened{pid, fd}, open); err != nil {
			return l, err
		} else if i < 0 {
			return l, fmt.Errorf(
				"descriptor %d of process %d is of a file that no process that it descends from has open", fd, pid)
		}
	}
	return l, alone(pid, family)
}

// LetGo lets process pid unmap and close what Inherited finds. One that has ended needs nothing.
func LetGo(pid int, family []int, o inject.Options) (Leftovers, error) {
	if l, err := Inherited(pid, family); err != nil || l.none() {
		return l, whileThere(err)
	}
	var l Leftovers
	err := inject.Stop(pid, o, func(t *inject.Task) (err error) {
		if l, err = Inherited(pid, family); err != nil {
			return err
		}
		for _, m := range l.Mappings {
			if _, err := t.Call(unix.SYS_MUNMAP, m.Start, m.End-m.Start); err != nil {
				return fmt.Errorf("unmap %x of process %d: %w", m.Start, pid, err)
			}
		}
		for _, fd := range l.Descriptors {
			if _, err := t.Call(unix.SYS_CLOSE, uint64(fd)); err != nil {
				return fmt.Errorf("close descriptor %d of process %d: %w", fd, pid, err)
			}
		}
		left, err := leftovers(pid)
		if err == nil && !left.none() {
			err = fmt.Errorf("process %d still has %d descriptors and %d mappings of GPUs", pid, len(left.Descriptors),
				len(left.Mappings))
		}
		return err
	})
	return l, whileThere(err)
}

// whileThere leaves out the error of a process that has ended.
func whileThere(err error) error {
	if errors.Is(err, inject.ErrGone) || isGone(err) {
		return nil
	}
	return err
}

func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// leftovers lists what a process has of the devices.
func leftovers(pid int) (l Leftovers, err error) {
	all, err := inject.Mappings(pid)
	if err != nil {
		return l, err
	}
	for _, m := range all {
		n := len(l.Mappings)
		switch {
		case !strings.HasPrefix(m.Path, devices):
		case n > 0 && l.Mappings[n-1].End == m.Start:
			l.Mappings[n-1].End = m.End
		default:
			l.Mappings = append(l.Mappings, Span{m.Start, m.End})
		}
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	names, err := os.ReadDir(dir)
	if err != nil {
		return l, err
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name.Name())
		if err != nil {
			continue
		}
		if to, err := os.Readlink(filepath.Join(dir, name.Name())); err == nil && strings.HasPrefix(to, devices) {
			l.Descriptors = append(l.Descriptors, fd)
		}
	}
	slices.Sort(l.Descriptors)
	return l, nil
}

// stat is what /proc/PID/stat tells of a process's birth.
type stat struct {
	parent int
	forked bool // it never executed a program
}

func readStat(pid int) (s stat, err error) {
	const forkNoExec = 0x40 // PF_FORKNOEXEC of linux/sched.h
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, err
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(f) < 7 {
		return s, fmt.Errorf("/proc/%d/stat: %q", pid, text)
	}
	var errs [2]error
	var flags uint64
	s.parent, errs[0] = strconv.Atoi(f[1])
	flags, errs[1] = strconv.ParseUint(f[6], 10, 64)
	s.forked = flags&forkNoExec != 0
	return s, errors.Join(errs[:]...)
}

// alone tells when a process shares descriptors or memory with another of its tree, or its parent.
func alone(pid int, family []int) error {
	s, err := readStat(pid)
	if err != nil {
		return err
	}
	for _, other := range append([]int{s.parent}, family...) {
		if other == pid || other == 0 {
			continue
		}
		for _, kind := range []int{kcmpVM, kcmpFiles} {
			same, err := kcmp(pid, other, kind, 0, 0)
			if err != nil && !isGone(err) {
				return err
			}
			if same {
				return fmt.Errorf("process %d shares its descriptors or memory with process %d", pid, other)
			}
		}
	}
	return nil
}

// opened is a descriptor of a process.
type opened struct{ pid, fd int }

// Kinds of comparisons, linux/kcmp.h.
const (
	kcmpFile  = 0
	kcmpVM    = 1
	kcmpFiles = 2
)

// sameFile finds the one of several descriptors that is the same open file, -1 for none.
func sameFile(a opened, of []opened) (int, error) {
	// Forked children have their parent's numbers.
	for _, number := range []bool{true, false} {
		for i, b := range of {
			if (a.fd == b.fd) != number {
				continue
			}
			if same, err := kcmp(a.pid, b.pid, kcmpFile, a.fd, b.fd); err != nil || same {
				return i, err
			}
		}
	}
	return -1, nil
}

// kcmp tells whether two processes share something, kcmp(2).
func kcmp(a, b, kind, i, j int) (bool, error) {
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), uintptr(kind), uintptr(i), uintptr(j), 0)
	if errno != 0 {
		return false, fmt.Errorf("compare processes %d and %d: %w", a, b, errno)
	}
	return r == 0, nil
}
