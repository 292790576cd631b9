package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
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
	f, err := os.Open(thunkPath)
	if errors.Is(err, fs.ErrNotExist) {
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
	var b [4]byte
	if _, err := f.ReadAt(b[:], 0); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", thunkPath, err)
	}
	return uint64(st.Size()), binary.NativeEndian.Uint32(b[:]), nil
}

// restoreThunkMemory makes the memory and its lock in a task's file system where
// they are missing.
func restoreThunkMemory(pid int, size uint64, magic uint32) error {
	if size == 0 {
		return nil
	}
	root := fmt.Sprintf("/proc/%d/root", pid)
	head := binary.NativeEndian.AppendUint32(nil, magic)
	// A semaphore of glibc's: the value, and that it is shared (128).
	sem := make([]byte, 32)
	binary.NativeEndian.PutUint64(sem, 1)
	binary.NativeEndian.PutUint32(sem[8:], 128)
	return errors.Join(makeMissing(root+thunkPath, head, int64(size)),
		makeMissing(root+thunkSemaphore, sem, int64(len(sem))))
}

func makeMissing(path string, head []byte, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteAt(head, 0)
	return errors.Join(err, f.Chmod(0o666), f.Truncate(size), f.Close())
}
