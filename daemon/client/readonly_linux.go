package client

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index"
)

// ConnectToRead is Connect for operations that only read: a store that cannot be written is opened for reading only:
// for lack of space or permission, or because its disk is mounted read-only.
func ConnectToRead(ctx context.Context, dir string, o index.Options) (*Session, error) {
	return connectBy(ctx, dir, o, openToRead)
}

// ReadOnly says why the store could not be opened for writing; nil where it was, or where nobody tried.
func (s *Session) ReadOnly() error { return s.unwritable }

// opener opens a store; unwritable says why not for writing.
type opener func(ctx context.Context, dir string, o index.Options) (s *index.Store, unwritable, err error)

func openToWrite(ctx context.Context, dir string, o index.Options) (s *index.Store, _, err error) {
	s, err = index.Open(ctx, dir, o)
	return s, nil, err
}

// writeRoom is how many bytes must be free for a command that only reads to open a store for writing. On a full disk
// that would cost the store its index, which is rebuilt then.
const writeRoom = 4 << 20

func openToRead(ctx context.Context, dir string, o index.Options) (s *index.Store, unwritable, err error) {
	if unwritable = full(dir); unwritable == nil || o.ReadOnly {
		s, err = index.Open(ctx, dir, o)
		if c := index.ClassOf(err); c != index.ReadOnly && c != index.NoSpace || o.ReadOnly {
			return s, nil, err
		}
		unwritable = err
	}
	o.ReadOnly = true
	s, err = index.Open(ctx, dir, o)
	return s, unwritable, err
}

// full says how much is free where that is too little.
func full(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil // whoever opens the store tells
	}
	if free := int64(st.Bavail) * st.Bsize; free < writeRoom {
		return fmt.Errorf("no space left on its disk, %d KiB are free", free>>10)
	}
	return nil
}
