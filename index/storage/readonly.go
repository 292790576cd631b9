package storage

import (
	"io"

	"golang.org/x/sys/unix"
)

// ReadOnly is a file system through which nothing can be changed: what would fails with EROFS. Files that are opened
// for writing are opened for reading, and a lock is shared with everybody else who only reads.
type ReadOnly struct{ Storage }

func refuse(op, name string) error { return fail(op, name, unix.EROFS) }

// Open is of Storage.
func (r ReadOnly) Open(name string, how How) (File, error) {
	if m := how.mode(); m == Create || m == Replace {
		return nil, refuse("open", name)
	}
	f, err := r.Storage.Open(name, Read|how&Direct)
	if err != nil {
		return nil, err
	}
	return readOnlyFile{f}, nil
}

// Mkdir is of Storage.
func (ReadOnly) Mkdir(name string) error { return refuse("mkdir", name) }

// Rename is of Storage.
func (ReadOnly) Rename(from, _ string) error { return refuse("rename", from) }

// Remove is of Storage.
func (ReadOnly) Remove(name string) error { return refuse("remove", name) }

// SyncDir is of Storage. There is nothing to make durable.
func (ReadOnly) SyncDir(string) error { return nil }

// Lock is of Storage.
func (r ReadOnly) Lock(name, _ string) (io.Closer, error) { return r.LockShared(name) }

type readOnlyFile struct{ File }

func (f readOnlyFile) WriteAt([]byte, int64) (int, error) { return 0, refuse("write", f.Name()) }
func (f readOnlyFile) Writev([][]byte, int64, bool) error { return refuse("write", f.Name()) }
func (f readOnlyFile) Truncate(int64) error               { return refuse("truncate", f.Name()) }
func (f readOnlyFile) Allocate(int64, int64) error        { return refuse("allocate", f.Name()) }
func (f readOnlyFile) Punch(int64, int64) error           { return refuse("punch hole", f.Name()) }
func (f readOnlyFile) Sync() error                        { return nil }
