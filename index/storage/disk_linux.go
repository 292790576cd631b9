package storage

import (
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Disk is the file system of this machine.
type Disk struct{}

func (Disk) Mkdir(name string) error      { return os.Mkdir(name, 0o700) }
func (Disk) Rename(from, to string) error { return os.Rename(from, to) }
func (Disk) Remove(name string) error     { return os.Remove(name) }

func (Disk) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

func (Disk) Stat(name string) (Info, error) {
	var st unix.Stat_t
	if err := retry(func() error { return unix.Lstat(name, &st) }); err != nil {
		return Info{}, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	kind := st.Mode & unix.S_IFMT
	return Info{Size: st.Size, Disk: st.Blocks * 512, Dir: kind == unix.S_IFDIR,
		Odd: kind != unix.S_IFDIR && kind != unix.S_IFREG}, nil
}

func (Disk) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (Disk) Free(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Statfs(dir, &st) }); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(st.Bavail) * st.Bsize, nil
}

func (Disk) Lock(name, holder string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_EX); err != nil {
		// What the file says is of the last one who wrote it; readers do not.
		var held *Locked
		if errors.As(err, &held) && flock(f, unix.LOCK_SH) == nil {
			held.Holder = readers
		}
		f.Close()
		return nil, err
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(holder+"\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// LockShared is of Storage. It works on a file system that is mounted read-only.
func (Disk) LockShared(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_SH); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// flock takes a lock without waiting; *Locked while others hold it.
func flock(f *os.File, how int) error {
	err := retry(func() error { return unix.Flock(int(f.Fd()), how|unix.LOCK_NB) })
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EWOULDBLOCK):
		b := make([]byte, 512)
		n, _ := f.ReadAt(b, 0) // for the message only
		return &Locked{Holder: strings.TrimSpace(string(b[:n]))}
	}
	return &os.PathError{Op: "flock", Path: f.Name(), Err: err}
}

var flags = map[How]int{
	Read:    os.O_RDONLY,
	Write:   os.O_RDWR,
	Create:  os.O_RDWR | os.O_CREATE | os.O_EXCL,
	Replace: os.O_RDWR | os.O_CREATE | os.O_TRUNC,
}

func (Disk) Open(name string, how How) (File, error) {
	f, err := os.OpenFile(name, flags[how.mode()], 0o600)
	if err != nil {
		return nil, err
	}
	d := &diskFile{File: f}
	if how&Direct != 0 {
		flag := os.O_RDWR
		if how.mode() == Read {
			flag = os.O_RDONLY
		}
		// A file system that cannot do it refuses: all calls go through the page cache then.
		if direct, err := os.OpenFile(name, flag|unix.O_DIRECT, 0); err == nil {
			d.direct = direct
		}
	}
	return d, nil
}

// diskFile is a file of the file system. direct is the same past the page cache; nil where the file system cannot.
type diskFile struct {
	*os.File
	direct *os.File
}

func (f *diskFile) Close() error {
	err := f.File.Close()
	if f.direct != nil {
		err = errors.Join(err, f.direct.Close())
	}
	return err
}

func (f *diskFile) fail(op string, err error) error {
	if err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return &os.PathError{Op: op, Path: f.Name(), Err: err}
}

func (f *diskFile) Readv(bufs [][]byte, off int64, past bool) error {
	if past && f.direct != nil && !f.cached(off, total(bufs)) {
		// Buffers or file system that cannot do it: the plain way works everywhere.
		if err := preadv(f.direct, off, bufs); !errors.Is(err, unix.EINVAL) {
			return f.fail("read", err)
		}
	}
	return f.fail("read", preadv(f.File, off, bufs))
}

func (f *diskFile) Writev(bufs [][]byte, off int64, past bool) error {
	if past && f.direct != nil {
		if err := pwritev(f.direct, off, bufs); !errors.Is(err, unix.EINVAL) {
			return f.fail("write", err)
		}
	}
	return f.fail("write", pwritev(f.File, off, bufs))
}

func (f *diskFile) Sync() error {
	return f.fail("fdatasync", retry(func() error { return unix.Fdatasync(int(f.Fd())) }))
}

func (f *diskFile) Allocate(off, n int64) error {
	return f.fail("allocate", retry(func() error { return unix.Fallocate(int(f.Fd()), 0, off, n) }))
}

func (f *diskFile) Punch(off, n int64) error {
	const mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	return f.fail("punch hole", retry(func() error { return unix.Fallocate(int(f.Fd()), mode, off, n) }))
}

func (f *diskFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

func (f *diskFile) Allocated(off, n int64) (int64, error) {
	sum, err := mapped(int(f.Fd()), off, n)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTTY) {
		sum, err = written(int(f.Fd()), off, n)
	}
	return sum, f.fail("count what is allocated", err)
}

func (f *diskFile) WillNeed(off, n int64) { unix.Fadvise(int(f.Fd()), off, n, unix.FADV_WILLNEED) }

// cached says whether [off, off+n) is in the page cache, or the kernel (before 6.5) cannot tell.
func (f *diskFile) cached(off, n int64) bool {
	var st unix.Cachestat_t
	err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Off: uint64(off), Len: uint64(n)}, &st, 0)
	return err != nil || int64(st.Cache)*pageSize >= n
}

func preadv(f *os.File, off int64, bufs [][]byte) error {
	return all(bufs, func(bufs [][]byte, done int64) (int, error) {
		n, err := unix.Preadv(int(f.Fd()), bufs, off+done)
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		return n, err
	})
}

func pwritev(f *os.File, off int64, bufs [][]byte) error {
	return all(bufs, func(bufs [][]byte, done int64) (int, error) {
		n, err := unix.Pwritev(int(f.Fd()), bufs, off+done)
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		return n, err
	})
}

// all calls fn until it has done all of bufs. The kernel does the most with one call: only what is left of it is
// gathered anew, so that bufs stays as it was for a second way.
func all(bufs [][]byte, fn func(bufs [][]byte, done int64) (int, error)) error {
	left, done := total(bufs), int64(0)
	owned := false
	for left > 0 {
		n, err := fn(bufs, done)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		left, done = left-int64(n), done+int64(n)
		if left == 0 {
			return nil
		}
		if !owned {
			bufs, owned = append([][]byte(nil), bufs...), true
		}
		bufs = consume(bufs, n)
	}
	return nil
}

// consume takes n bytes off the front of bufs.
func consume(bufs [][]byte, n int) [][]byte {
	for n > 0 && n >= len(bufs[0]) {
		n -= len(bufs[0])
		bufs = bufs[1:]
	}
	if n > 0 {
		bufs[0] = bufs[0][n:]
	}
	return bufs
}

func total(bufs [][]byte) (n int64) {
	for _, b := range bufs {
		n += int64(len(b))
	}
	return n
}

// retry calls fn again for as long as a signal interrupts it.
func retry(fn func() error) error {
	for {
		if err := fn(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
