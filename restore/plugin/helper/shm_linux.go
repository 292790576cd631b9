package helper

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// shared is memory shared with CRIU or a task.
type shared struct {
	file *os.File
	mem  []byte
}

// newShared makes memory of n bytes.
func newShared(n uint64) (*shared, error) {
	fd, err := unix.MemfdCreate("gpucr-restore", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "shared memory")
	if err := f.Truncate(int64(n)); err != nil {
		f.Close()
		return nil, err
	}
	return mapShared(f, n)
}

// mapShared maps memory that another process has made, and takes over f.
func mapShared(f *os.File, n uint64) (*shared, error) {
	st, err := f.Stat()
	if err == nil && (n == 0 || uint64(st.Size()) != n) {
		err = fmt.Errorf("shared memory has %d bytes, %d were announced", st.Size(), n)
	}
	var mem []byte
	if err == nil {
		mem, err = unix.Mmap(int(f.Fd()), 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &shared{f, mem}, nil
}

func (s *shared) close() {
	unix.Munmap(s.mem)
	s.file.Close()
}

// slice returns a part of the memory, or an error where it is too short.
func (s *shared) slice(off, n uint64) ([]byte, error) {
	if size := uint64(len(s.mem)); off > size || n > size-off {
		return nil, fmt.Errorf("bytes %d to %d of %d bytes of shared memory", off, off+n, size)
	}
	return s.mem[off : off+n], nil
}
