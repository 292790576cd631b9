package peer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Which processes run before their GPU memory is there stands in locks on one file, a
// byte for each: a dump would write what was not filled yet. The kernel takes
// locks back from a helper that is killed.

// comingFile is the default of [Options.Coming].
const comingFile = "/run/gpucr-fs/vram"

// coming are this process's locks.
type coming struct {
	path string

	mu   sync.Mutex
	file *os.File
}

// byteOf gives a process's byte: its own pid and pid namespace are the same from
// wherever it is seen.
func byteOf(pid int) (int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/pid", pid), &st); err != nil {
		return 0, fmt.Errorf("pid namespace of process %d: %w", pid, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if list, ok := strings.CutPrefix(line, "NSpid:"); ok {
			fields := strings.Fields(list)
			own, err := strconv.Atoi(fields[len(fields)-1])
			const pidBits, inodeBits = 22, 40 // the kernel's bound of pids
			return int64(st.Ino&(1<<inodeBits-1))<<pidBits | int64(own), err
		}
	}
	return 0, fmt.Errorf("process %d has no NSpid in its status", pid)
}

// add says that a process runs before its memory is there, and gives its byte.
func (c *coming) add(pid int) (at int64, err error) {
	if at, err = byteOf(pid); err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		if err := os.MkdirAll(filepath.Dir(c.path), 0o755); err != nil {
			return 0, err
		}
		if c.file, err = os.OpenFile(c.path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			return 0, err
		}
	}
	return at, unix.FcntlFlock(c.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 1})
}

// remove says that all is there.
func (c *coming) remove(at int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return unix.FcntlFlock(c.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK, Start: at, Len: 1})
}

func (c *coming) close() {
	if c.file != nil {
		c.file.Close()
	}
}

// comingEvery is how often somebody looks who waits for GPU memory.
const comingEvery = 10 * time.Millisecond

// awaitMemory waits until nobody is bringing GPU memory of the process that has kfd
// open: it comes or the process is ended.
func awaitMemory(ctx context.Context, path string, kfd *os.File) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	taken := func(at, n int64) (bool, error) {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: n}
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock)
		return lock.Type != unix.F_UNLCK, err
	}
	// Whose it is takes a look at all processes.
	if any, err := taken(0, 0); err != nil || !any {
		return err
	}
	pid, err := owner(kfd)
	if err != nil {
		return err
	}
	at, err := byteOf(pid)
	if err != nil {
		return err
	}
	for {
		if wait, err := taken(at, 1); err != nil || !wait {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(comingEvery):
		}
	}
}
