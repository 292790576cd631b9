package storage

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Storage is a file system as the store uses it. Names are absolute paths. Errors wrap an errno, as those of package
// os do. Safe for concurrent use.
type Storage interface {
	// Open opens a file.
	Open(name string, how How) (File, error)
	// Mkdir makes a folder whose parent exists, with permissions 0700.
	Mkdir(name string) error
	// Rename gives a file another name in its folder, in one step. A file of that name is replaced.
	Rename(from, to string) error
	// Remove removes a file or an empty folder.
	Remove(name string) error
	// List gives the names in a folder, sorted.
	List(dir string) ([]string, error)
	// Stat describes a file or folder.
	Stat(name string) (Info, error)
	// SyncDir makes durable which names a folder holds.
	SyncDir(dir string) error
	// Free gives the bytes that an unprivileged writer could still write to the file system of dir.
	Free(dir string) (int64, error)
	// Lock takes the lock file name until it is closed or the process ends, and writes into it who holds it. It does
	// not wait: the error is *Locked while somebody else holds it.
	Lock(name, holder string) (io.Closer, error)
	// LockShared takes the lock file name beside others who took it so, and keeps Lock out until it is closed or the
	// process ends. It changes nothing: a lock file that is not there is an error (ENOENT). The error is *Locked while
	// somebody holds it by Lock.
	LockShared(name string) (io.Closer, error)
}

// How says how a file is opened. One of the first four, and Direct with it.
type How uint8

const (
	Read    How = iota // an existing file, for reading
	Write              // an existing file, for reading and writing
	Create             // a new file, for reading and writing; an existing one is an error (EEXIST)
	Replace            // a file for reading and writing, emptied if there is one

	// Direct prepares for calls that go past the page cache.
	Direct How = 1 << 4
)

func (h How) mode() How { return h &^ Direct }

// File is an open file. Safe for concurrent use.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Name() string

	// Readv fills the buffers one after the other from off on, or fails: io.ErrUnexpectedEOF where the file ends
	// before. With past, and if the file was opened with Direct, it reads past the page cache unless all of the range
	// is there.
	Readv(bufs [][]byte, off int64, past bool) error
	// Writev writes the buffers one after the other at off. With past, and if the file was opened with Direct, it
	// writes past the page cache where buffers and offset are aligned to pages; other writes go through it.
	Writev(bufs [][]byte, off int64, past bool) error

	// Sync makes the content and size durable. When it fails, what it was to cover may be lost whatever a later Sync
	// says.
	Sync() error
	Truncate(size int64) error
	// Allocate takes disk for a range, which reads as zeros where it was not written; the file is then at least as
	// long. A file system that cannot fails.
	Allocate(off, n int64) error
	// Punch gives a range back to the file system; it reads as zeros afterwards. The size stays.
	Punch(off, n int64) error

	Size() (int64, error)
	// Allocated gives how many bytes of a range occupy disk, written or not. On a disk without extent maps (tmpfs, NFS)
	// it does not see what was allocated and never written.
	Allocated(off, n int64) (int64, error)
	// WillNeed lets the file system begin to read a range. It is advice: what goes wrong shows when the range is read.
	WillNeed(off, n int64)
}

// Info describes a file or folder.
type Info struct {
	Size int64 // bytes, holes included
	Disk int64 // bytes that it occupies on disk
	Dir  bool
	Odd  bool // neither a file nor a folder: a pipe, a device, a link
}

// readers is the holder of a lock that was taken by LockShared.
const readers = "who opened it for reading only"

// Locked is the error of Lock and LockShared while somebody else holds the lock.
type Locked struct{ Holder string }

func (e *Locked) Error() string { return fmt.Sprintf("held by %s", e.Holder) }

// ReadFile gives the first limit bytes of a file, or all of it.
func ReadFile(s Storage, name string, limit int64) ([]byte, error) {
	f, err := s.Open(name, Read)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(size, limit))
	n, err := f.ReadAt(b, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], err
}

// WriteSynced writes a file and syncs it. Its name is not durable before SyncDir of its folder.
func WriteSynced(s Storage, name string, b []byte) error {
	f, err := s.Open(name, Replace)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// WriteFile puts a file in place of another in one step that a crash cannot split: it is written and synced under
// name+".new", then renamed. When WriteFile returns nil the new content is durable.
func WriteFile(s Storage, name string, b []byte) error {
	fresh := name + ".new"
	if err := WriteSynced(s, fresh, b); err != nil {
		s.Remove(fresh) // on a full disk it would be in the way
		return err
	}
	if err := s.Rename(fresh, name); err != nil {
		return err
	}
	return s.SyncDir(filepath.Dir(name))
}

// Cut makes a file end at end, durably. What lies behind is written over first: a cut that no sync made durable can be
// undone by a power cut, long after others have built on it. Where the disk does not say that it is gone, it is put
// back: who opens the file next must see no less than the disk may have. It is held in memory meanwhile. A disk that
// has no room to write over it cuts it at once.
func Cut(f File, end int64) error {
	size, err := f.Size()
	if err != nil {
		return err
	}
	behind := make([]byte, max(0, size-end))
	if n, err := f.ReadAt(behind, end); err != nil && n < len(behind) {
		return err
	}
	if _, err = f.WriteAt(make([]byte, len(behind)), end); err == nil || IsFull(err) {
		err = f.Sync() // where it became full on the way, a part is written
	}
	if err == nil || IsFull(err) {
		err = errors.Join(f.Truncate(end), f.Sync())
	}
	if err != nil {
		_, again := f.WriteAt(behind, end)
		err = errors.Join(err, again)
	}
	return err
}

// IsFull says whether a call failed for want of space.
func IsFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
