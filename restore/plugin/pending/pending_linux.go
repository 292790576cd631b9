// Package pending knows which processes run before their GPU memory is there.
//
// The helper, which brings the memory of a process, and the watchdog both hold a lock on one file, a byte for each
// process. The kernel releases the locks of a process that is killed. Each process also has a record, a file that
// stays. A record without a lock tells of a process whose memory nobody brings any more. That process stands still for
// good, and a dump of it would write what was never filled. [EndAbandoned] ends it.
package pending

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/procfs"
)

// Path is where the file of locks is by default. The folder of records is beside it.
const Path = "/run/gpucr-fs/vram"

// ErrAbandoned says that a process's GPU memory never came, and that nobody brings it.
var ErrAbandoned = errors.New("who brought the GPU memory of the process was killed before it was there")

// records is the folder of records that belongs to a file of locks.
func records(path string) string { return path + ".d" }

func record(path string, at int64) string {
	return filepath.Join(records(path), strconv.FormatInt(at, 16))
}

// Processes are the processes of one helper that run before their memory is there.
type Processes struct {
	path string

	mu    sync.Mutex
	file  *os.File
	stuck []int64 // bytes of those that are ready and whose records stay
}

// New makes an empty set of processes. The caller must call Close.
func New(path string) *Processes { return &Processes{path: path} }

// byteOf gives a process's byte: its own pid and pid namespace are the same from wherever it is seen.
func byteOf(pid int) (int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/pid", pid), &st); err != nil {
		return 0, fmt.Errorf("pid namespace of process %d: %w", pid, err)
	}
	numbers, err := procfs.ReadNumbers(pid)
	if err != nil {
		return 0, fmt.Errorf("pids of process %d: %w", pid, err)
	}
	if len(numbers) == 0 {
		return 0, fmt.Errorf("process %d has no NSpid in its status: %w", pid, unix.ESRCH)
	}
	const pidBits, inodeBits = 22, 40 // the kernel's bound of pids
	return int64(st.Ino&(1<<inodeBits-1))<<pidBits | int64(numbers[len(numbers)-1]), nil
}

// birth tells a process from others that have its pid later; "" when it is gone. One that cannot be read now is not
// gone: its memory may be missing all the same.
func birth(pid int) (string, error) {
	const start = 22 - 3 // see proc_pid_stat(5)
	f, err := procfs.ReadStat(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || len(f) <= start || procfs.Ended(f) {
		return "", err
	}
	return f[start], nil
}

// Add says that a process runs before its memory is there. It returns the process's byte in the file of locks.
func (c *Processes) Add(pid int) (at int64, err error) {
	if at, err = byteOf(pid); err != nil {
		return 0, err
	}
	born, err := birth(pid)
	if err != nil {
		return 0, err
	}
	if born == "" {
		return 0, fmt.Errorf("process %d: %w", pid, unix.ESRCH)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		if err := os.MkdirAll(records(c.path), 0o755); err != nil {
			return 0, err
		}
		if c.file, err = os.OpenFile(c.path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			return 0, err
		}
	}
	// Somebody may be looking at what a former process of this pid has left.
	for late := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		if err = lock(c.file, at); !errors.Is(err, unix.EAGAIN) || time.Now().After(late) {
			break
		}
	}
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(record(c.path, at), []byte(born), 0o600); err != nil {
		return 0, errors.Join(err, unlock(c.file, at))
	}
	return at, nil
}

func lock(f *os.File, at int64) error {
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 1})
}

func unlock(f *os.File, at int64) error {
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK, Start: at, Len: 1})
}

// Remove says that all memory of a process is there, or that the process is gone. A record that cannot be removed is
// emptied, and goes with the next EndAbandoned. Where that fails too, the lock is kept: without it the record would end
// the process. Close tries again then.
func (c *Processes) Remove(at int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept, err := c.clear(at)
	if kept {
		c.stuck = append(c.stuck, at)
		return fmt.Errorf("dumps wait for memory that is there: %w", err)
	}
	return errors.Join(err, unlock(c.file, at))
}

// clear removes or empties a record. kept: neither was possible. Preconditions: c.mu is held.
func (c *Processes) clear(at int64) (kept bool, err error) {
	name := record(c.path, at)
	err = os.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err2 := os.Truncate(name, 0); err2 != nil {
		return true, errors.Join(err, err2)
	}
	return false, err
}

// Locks is the file whose locks last as long as somebody has it open. Preconditions: Add has succeeded.
func (c *Processes) Locks() *os.File {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.file
}

// Close releases the locks. The error tells of processes that have their memory and will be ended all the same.
func (c *Processes) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, at := range c.stuck {
		if kept, err := c.clear(at); kept {
			errs = append(errs, fmt.Errorf("remove the file by hand, the next restore would end its process: %w", err))
		}
	}
	if c.file != nil {
		c.file.Close()
	}
	return errors.Join(errs...)
}

// every is how often Await looks whether GPU memory is there.
const every = 10 * time.Millisecond

// Await waits until nobody is bringing GPU memory of a process: it is there, or the process is ended, or it is
// ErrAbandoned. The function who gives the pid of the process. It is called when there may be a reason to wait.
func Await(ctx context.Context, path string, who func() (pid int, err error)) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	left, err := os.ReadDir(records(path))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(left) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	pid, err := who()
	if err != nil {
		return err
	}
	at, err := byteOf(pid)
	if err != nil {
		return err
	}
	for {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 1}
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
			return err
		}
		if lock.Type == unix.F_UNLCK {
			// The record goes before the lock does.
			left, err := isLeft(record(path, at), pid)
			if err != nil {
				return fmt.Errorf("cannot tell whether the GPU memory of process %d is there, try again: %w", pid, err)
			}
			if left {
				return fmt.Errorf("process %d: %w", pid, ErrAbandoned)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(every):
		}
	}
}

// isLeft tells whether a record is there and is that of a process. Where that is not known it is an error: who goes on
// would take memory for good that was never filled.
func isLeft(record string, pid int) (bool, error) {
	born, err := os.ReadFile(record)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if len(born) == 0 {
		return false, nil // see Remove
	}
	now, err := birth(pid)
	return err == nil && string(born) == now, err
}

// EndAbandoned ends the processes whose memory nobody brings any more, and calls ended for each. It removes the records
// of those that are gone.
func EndAbandoned(path string, ended func(pid int)) error {
	left, err := os.ReadDir(records(path))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(left) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var errs []error
	for _, e := range left {
		at, err := strconv.ParseInt(e.Name(), 16, 64)
		if err != nil || at < 0 {
			continue // nobody's
		}
		switch err := lock(f, at); err {
		case nil:
			errs = append(errs, endOne(path, at, ended), unlock(f, at))
		case unix.EAGAIN, unix.EACCES: // somebody brings it
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// endOne ends the process of a record, if there is one. The record goes only when that process is known to have ended:
// without it nobody would know later that its memory is missing. Preconditions: its byte is locked by the caller.
func endOne(path string, at int64, ended func(pid int)) error {
	born, err := os.ReadFile(record(path, at))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the helper was done meanwhile
	}
	if err != nil {
		return err
	}
	if len(born) == 0 {
		return os.Remove(record(path, at)) // see Processes.Remove
	}
	pid, err := find(at, string(born))
	if err != nil {
		return err
	}
	if pid != 0 {
		if err := end(pid, string(born), ended); err != nil {
			return fmt.Errorf("end process %d, whose GPU memory does not come: %w", pid, err)
		}
	}
	return os.Remove(record(path, at))
}

// find gives the process of a byte that was born then, 0 when it is known that there is none.
func find(at int64, born string) (pid int, unknown error) {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// Anybody may ask when a process was born, but not for its namespace.
		now, err := birth(pid)
		var own int64
		if err == nil && now == born {
			own, err = byteOf(pid)
		}
		switch {
		case procfs.Gone(err):
		case err != nil:
			unknown = err // it may be this one
		case own == at:
			return pid, nil
		}
	}
	return 0, unknown
}

// end kills a process that was born then, and calls ended. It may have ended before.
func end(pid int, born string, ended func(pid int)) error {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(pidfd)
	now, err := birth(pid)
	if err != nil || now != born {
		return err
	}
	switch err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err {
	case nil:
		ended(pid)
	case unix.ESRCH:
	default:
		return os.NewSyscallError("pidfd_send_signal", err)
	}
	return nil
}
