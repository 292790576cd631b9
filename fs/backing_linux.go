package fs

import (
	"time"

	"golang.org/x/sys/unix"
)

// backing is a file without a name that holds the contents of a scratch file. It takes writes from the server and,
// where the kernel has passthrough (Linux 6.9), straight from those who have the scratch file open: a line of a log
// then costs what it costs on the file system below, 1.2 µs, in place of a round trip to the server, 45 µs.
type backing struct {
	fd   int
	told time.Time // its own mtime when a time was set that differs; guarded by scratchNode.mu
}

// lowSpace is how much a file system must have free for scratch to be kept on it.
const lowSpace = 64 << 20

// newBacking makes an empty file in dir; in memory where dir has no files without names, or little space.
func newBacking(dir string) (*backing, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err == nil && st.Bavail*uint64(st.Bsize) >= lowSpace {
		if fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600); err == nil {
			return &backing{fd: fd}, nil
		}
	}
	fd, err := unix.MemfdCreate("gpucr-fs-scratch", unix.MFD_CLOEXEC)
	return &backing{fd: fd}, err
}

func (b *backing) stat() (size, blocks int64, mtime time.Time, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(b.fd, &st); err != nil {
		return 0, 0, time.Time{}, err
	}
	return st.Size, st.Blocks, time.Unix(st.Mtim.Unix()), nil
}

func (b *backing) readAt(dest []byte, off int64) (int, error) {
	done := 0
	for done < len(dest) {
		k, err := unix.Pread(b.fd, dest[done:], off+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return done, err
		}
		if k == 0 {
			break
		}
		done += k
	}
	return done, nil
}

func (b *backing) writeAt(data []byte, off int64) (int, error) {
	done := 0
	for done < len(data) {
		k, err := unix.Pwrite(b.fd, data[done:], off+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return done, err
		}
		done += k
	}
	return done, nil
}

func (b *backing) truncate(size int64) error { return unix.Ftruncate(b.fd, size) }

func (b *backing) punch(off, length int64) error {
	return unix.Fallocate(b.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length)
}

func (b *backing) close() { _ = unix.Close(b.fd) } // nothing in it is wanted any more

// maxBackings bounds how many a mount keeps: a quarter of the descriptors that the process may have, and no more than
// 4096.
func maxBackings() int {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return 64
	}
	return int(min(lim.Cur/4, 4096))
}
