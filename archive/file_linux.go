package archive

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// nofollow opens a member of a source directory: never through a link, never waiting on a pipe.
const nofollow = os.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK

// adviseSequential doubles the kernel's readahead. Advice only: failure changes nothing but speed.
func adviseSequential(f *os.File) { _ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_SEQUENTIAL) }

// nextData finds the first run of data at or after off: its start and end, or start = size when only a hole is left.
// File systems that know no holes give one run.
func nextData(f *os.File, off, size int64) (start, end int64, err error) {
	start, err = unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size, size, nil
	case errors.Is(err, unix.EINVAL): // not supported here
		return off, size, nil
	case err != nil:
		return 0, 0, &os.PathError{Op: "seek", Path: f.Name(), Err: err}
	}
	end, err = unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, &os.PathError{Op: "seek", Path: f.Name(), Err: err}
	}
	return min(start, size), min(end, size), nil
}

// replaceEmpty renames a directory to a name that is free or an empty directory's, which os.Rename refuses.
func replaceEmpty(from, to string) error {
	if err := unix.Rename(from, to); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}
