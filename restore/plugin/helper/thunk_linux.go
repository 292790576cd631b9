package helper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// thunkPath is memory that the processes of a ROCm runtime share, and
// thunkSemaphore its lock. CRIU's amdgpu plugin keeps the memory's size and its
// first four bytes, and so does this.
const (
	thunkPath      = "/dev/shm/hsakmt_shared_mem"
	thunkSemaphore = "/dev/shm/sem.hsakmt_semaphore"
)

// thunkMemory returns the size, 0 where there is none, and the magic.
func thunkMemory() (size uint64, magic uint32, err error) {
	return readThunk(thunkPath)
}

// readThunk is thunkMemory for one path. Anybody may write in the folder: what is no
// file of its own there, a link or a pipe, counts as missing.
func readThunk(path string) (size uint64, magic uint32, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	if !st.Mode().IsRegular() {
		return 0, 0, nil
	}
	var b [4]byte
	if _, err := f.ReadAt(b[:], 0); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", path, err)
	}
	return uint64(st.Size()), binary.NativeEndian.Uint32(b[:]), nil
}

// restoreThunkMemory makes the memory and its lock in a task's file system where
// they are missing. end is the task's.
func restoreThunkMemory(pid int, end *watched, size uint64, magic uint32) error {
	if size == 0 {
		return nil
	}
	root, err := os.OpenFile(fmt.Sprintf("/proc/%d/root", pid), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer root.Close()
	if end.gone() {
		return fmt.Errorf("process %d: %w", pid, unix.ESRCH) // the root may be another's
	}
	head := binary.NativeEndian.AppendUint32(nil, magic)
	// A semaphore of glibc's: the value, and that it is shared (128).
	sem := make([]byte, 32)
	binary.NativeEndian.PutUint64(sem, 1)
	binary.NativeEndian.PutUint32(sem[8:], 128)
	return errors.Join(makeMissing(root, thunkPath, head, int64(size)),
		makeMissing(root, thunkSemaphore, sem, int64(len(sem))))
}

// makeMissing makes a file below root. Links on the way there are the task's own:
// they lead to what it could open itself, as /proc/PID/root in a path would not have
// it.
func makeMissing(root *os.File, path string, head []byte, size int64) error {
	fd, err := unix.Openat2(int(root.Fd()), path, &unix.OpenHow{
		Flags: unix.O_RDWR | unix.O_CREAT | unix.O_EXCL | unix.O_CLOEXEC, Mode: 0o666,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err == unix.EEXIST {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "create", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	_, err = f.WriteAt(head, 0)
	return errors.Join(err, f.Chmod(0o666), f.Truncate(size), f.Close())
}
