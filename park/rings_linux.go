//go:build amd64

package park

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/park/inject"
)

// ringLink is what a descriptor of a ring leads to, and the path of its mappings.
const ringLink = "anon_inode:[io_uring]"

// Offsets of mappings of a ring, linux/io_uring.h. The first two are the same memory since Linux 5.4.
const (
	offSQ   = 0
	offCQ   = 0x8000000
	offSQEs = 0x10000000
)

// ring is a ring of a process.
type ring struct {
	counters
	fd       int
	mappings []inject.Mapping
}

// maxRingMemory bounds what is saved of a process's rings.
const maxRingMemory = 64 << 20

// Idle tells why the rings of process pid cannot be parked. family are the processes of its tree.
func Idle(pid int, family []int) error {
	return retry(func() error {
		rings, err := findRings(pid, family)
		if err == nil && len(rings) == 0 {
			err = fmt.Errorf("process %d has no ring", pid)
		}
		return err
	})
}

// retry calls f until it finds no ring busy: a program that uses one is idle in between.
func retry(f func() error) error {
	const limit, pause = time.Second, 2 * time.Millisecond
	for end := time.Now().Add(limit); ; time.Sleep(pause) {
		err := f()
		if !errors.Is(err, errBusy) || time.Now().After(end) {
			return err
		}
	}
}

// findRings gives the rings of a process, all of which can be parked.
func findRings(pid int, family []int) ([]ring, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		switch {
		case name == "State" && strings.HasPrefix(value, "T"):
			return nil, errors.New("the process is stopped")
		case name == "VmLck" && !strings.HasPrefix(strings.TrimSpace(value), "0 "):
			return nil, errors.New("the process has locked memory")
		}
	}
	why, err := inject.Unbearable(pid)
	if err == nil && why != "" {
		err = errors.New(why)
	}
	if err != nil {
		return nil, err
	}
	if err := checkAddressLimit(pid); err != nil {
		return nil, err
	}
	rings, watched, err := ringDescriptors(pid)
	if err != nil {
		return nil, err
	}
	for _, r := range rings {
		if err := r.counters.idle(); err != nil {
			return nil, fmt.Errorf("ring %d: %w", r.fd, err)
		}
	}
	all, err := inject.Mappings(pid)
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		if m.Path != ringLink {
			continue
		}
		i := slices.IndexFunc(rings, func(r ring) bool { return r.inode == m.Inode })
		if i < 0 {
			return nil, errors.New("a ring is mapped whose descriptor is closed")
		}
		if (m.Offset != offSQ && m.Offset != offCQ && m.Offset != offSQEs) || !strings.HasSuffix(m.Perms, "s") {
			return nil, fmt.Errorf("ring %d has a mapping at %x of what is not known, such as a ring of buffers",
				rings[i].fd, m.Start)
		}
		rings[i].mappings = append(rings[i].mappings, m)
	}
	if err := alone(pid, family); err != nil {
		return nil, err
	}
	if err := unshared(pid, rings, family); err != nil {
		return nil, err
	}
	memory := uint64(0)
	for _, r := range rings {
		if _, ok := r.base(); !ok {
			return nil, fmt.Errorf("ring %d is not mapped by the kernel (IORING_SETUP_NO_MMAP)", r.fd)
		}
		for _, m := range r.mappings {
			memory += m.End - m.Start
		}
		if slices.Contains(watched, r.inode) {
			return nil, fmt.Errorf("ring %d is waited for by epoll", r.fd)
		}
		if err := r.ask(pid); err != nil {
			return nil, fmt.Errorf("ring %d: %w", r.fd, err)
		}
	}
	if memory > maxRingMemory {
		return nil, fmt.Errorf("its rings have %d MiB of memory", memory>>20)
	}
	return rings, nil
}

// checkAddressLimit tells why a process cannot fill its address space for a moment: see fill.
func checkAddressLimit(pid int) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "Max address space"); ok &&
			!strings.HasPrefix(strings.TrimSpace(rest), "unlimited") {
			return errors.New("the process's address space is limited (RLIMIT_AS)")
		}
	}
	return nil
}

// base is where a ring's indices are mapped.
func (r *ring) base() (inject.Mapping, bool) {
	for _, m := range r.mappings {
		if m.Offset == offSQ || m.Offset == offCQ {
			return m, true
		}
	}
	return inject.Mapping{}, false
}

const (
	pageSize = 4096
	sqeSize  = 64
)

// longSQEs tells by the mapping of a ring's entries that they are the larger kind. A small ring has one page for both.
func (r *ring) longSQEs() bool {
	for _, m := range r.mappings {
		if m.Offset == offSQEs {
			return m.End-m.Start > (uint64(r.sqMask+1)*sqeSize+pageSize-1)&^(pageSize-1)
		}
	}
	return false
}

// ringDescriptors reads the descriptors of a process: its rings, and the inodes of what its epolls wait for.
func ringDescriptors(pid int) (rings []ring, watched []uint64, err error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		fd, nerr := strconv.Atoi(name.Name())
		to, lerr := os.Readlink(filepath.Join(dir, name.Name()))
		if nerr != nil || lerr != nil || to != ringLink && to != "anon_inode:[eventpoll]" {
			continue
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd))
		if err != nil {
			return nil, nil, err
		}
		if to != ringLink {
			watched = append(watched, targets(string(text))...)
			continue
		}
		c, err := readCounters(strings.NewReader(string(text)))
		if err != nil {
			return nil, nil, err
		}
		if slices.ContainsFunc(rings, func(r ring) bool { return r.inode == c.inode }) {
			return nil, nil, fmt.Errorf("ring %d has another descriptor", fd)
		}
		rings = append(rings, ring{counters: c, fd: fd})
	}
	return rings, watched, nil
}

// targets gives the inodes of an epoll's files: "tfd: 5 events: 19 data: 5 pos:0 ino:1c sdev:10".
func targets(fdinfo string) (inodes []uint64) {
	for line := range strings.Lines(fdinfo) {
		if !strings.HasPrefix(line, "tfd:") {
			continue
		}
		for _, f := range strings.Fields(line) {
			if hex, ok := strings.CutPrefix(f, "ino:"); ok {
				if n, err := strconv.ParseUint(hex, 16, 64); err == nil {
					inodes = append(inodes, n)
				}
			}
		}
	}
	return inodes
}

// unshared tells when another process has one of the rings, open or mapped. Descriptors are looked for everywhere,
// mappings in the tree and with the parent: they come by fork alone.
func unshared(pid int, rings []ring, family []int) error {
	has := func(inode uint64) bool {
		return slices.ContainsFunc(rings, func(r ring) bool { return r.inode == inode })
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		other, err := strconv.Atoi(e.Name())
		if err != nil || other == pid {
			continue
		}
		is, err := opens(other, has)
		if err != nil {
			return err
		}
		if is {
			return fmt.Errorf("process %d has the same ring open", other)
		}
	}
	s, err := readStat(pid)
	if err != nil {
		return err
	}
	for _, other := range append([]int{s.parent}, family...) {
		if other == pid {
			continue
		}
		all, err := inject.Mappings(other)
		if err != nil && !isGone(err) {
			return err
		}
		for _, m := range all {
			if m.Path == ringLink && has(m.Inode) {
				return fmt.Errorf("process %d has the same ring mapped", other)
			}
		}
	}
	return nil
}

// opens tells whether a process has one of some rings open, however often. One that has ended has none. With an error
// that is not known.
func opens(pid int, has func(inode uint64) bool) (bool, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	names, err := os.ReadDir(dir)
	if err != nil && !isGone(err) && !errors.Is(err, fs.ErrPermission) {
		return false, err
	}
	for _, name := range names {
		path := filepath.Join(dir, name.Name())
		if to, err := os.Readlink(path); err != nil || to != ringLink {
			continue
		}
		// Its fdinfo would tell less while the ring is busy.
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err == nil && has(st.Ino) {
			return true, nil
		}
	}
	return false, nil
}

// Operations of io_uring_register, linux/io_uring.h.
const (
	registerEventfd  = 4
	registerProbe    = 8
	registerPBufStat = 26
	registerNAPI     = 27
)

// nowhere is an address that nobody has: the kernel says EFAULT when it comes to read there.
const nowhere = 1

// maxBufferGroups is how many rings of buffers a ring may have.
const maxBufferGroups = 1 << 16

// ask asks a ring itself, by a descriptor of this process's, what the kernel does not tell in /proc. No question
// changes anything: what would is asked with an address that cannot be read, and refused for that at the last.
func (r *ring) ask(pid int) error {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, r.fd, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	enter := func() unix.Errno {
		const getEvents = 1
		_, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(fd), 0, 0, getEvents, 0, 0)
		return errno
	}
	register := func(op, arg, n uintptr) unix.Errno {
		_, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(fd), op, arg, n, 0, 0)
		return errno
	}
	if errno := enter(); errno == unix.EBADFD {
		return errors.New("it is not enabled yet (IORING_SETUP_R_DISABLED)")
	} else if errno == unix.EEXIST {
		return errors.New("it belongs to one thread (IORING_SETUP_DEFER_TASKRUN)")
	}
	if errno := register(registerProbe, nowhere, 1); errno == unix.EEXIST {
		return errors.New("it belongs to one thread (IORING_SETUP_SINGLE_ISSUER)")
	}
	switch register(registerEventfd, nowhere, 1) {
	case unix.EFAULT:
	case unix.EBUSY:
		return errors.New("it has a registered eventfd")
	default:
		return errors.New("whether it has a registered eventfd cannot be told")
	}
	switch register(registerNAPI, nowhere, 1) {
	case unix.EFAULT, unix.EOPNOTSUPP:
	default:
		return errors.New("it may poll for completions (IORING_SETUP_IOPOLL); Linux 6.9 or newer tells")
	}
	var status struct {
		group, head uint32
		resv        [8]uint32
	}
	for ; status.group < maxBufferGroups; status.group++ {
		if errno := register(registerPBufStat, uintptr(unsafe.Pointer(&status)), 1); errno != unix.ENOENT {
			return fmt.Errorf("it has buffers of its own, or cannot tell (group %d: %v)", status.group, errno)
		}
	}
	return nil
}
