package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// home is where a daemon has its sockets: in its store, and where nothing may be written there in wire.Away, which it
// then holds by a lock of its own, for that of the store is shared by all who read.
type home struct {
	dir  string
	lock io.Closer // nil in the store
}

func (h home) Close() error {
	if h.lock == nil {
		return nil
	}
	return h.lock.Close()
}

// takeHome gives the home for the daemon of an open store. Class InUse where another one has it.
func takeHome(s *index.Store) (home, error) {
	if !s.ReadOnly() {
		return home{dir: s.Dir()}, nil
	}
	dir, err := wire.MakeAway(s.Dir())
	if err != nil {
		return home{}, fmt.Errorf("a folder for the daemon's sockets: %w", err)
	}
	lock, err := storage.Disk{}.Lock(filepath.Join(dir, "lock"), index.Holder(true))
	if held := (*storage.Locked)(nil); errors.As(err, &held) {
		return home{}, index.HeldBy(s.Dir(), held)
	}
	return home{dir, lock}, err
}

// openForDaemon opens the store, and one that cannot be written for reading only. On a full disk it fails: space comes
// back, and the daemon would stay in the way of writers.
func openForDaemon(ctx context.Context, o Options) (*index.Store, error) {
	s, err := index.Open(ctx, o.Dir, o.Index)
	if index.ClassOf(err) == index.ReadOnly && !o.Index.ReadOnly {
		o.Logger.Warn("the store is opened for reading only", "error", err)
		o.Index.ReadOnly = true
		return index.Open(ctx, o.Dir, o.Index)
	}
	return s, err
}

// DefaultLog gives the path of the log of a daemon of the store at dir: in the store, or where its sockets are.
func DefaultLog(dir string, readOnly bool) string {
	const name = "daemon.log"
	if readOnly || unix.Access(dir, unix.W_OK) != nil {
		if away, err := wire.MakeAway(dir); err == nil {
			return filepath.Join(away, name)
		}
	}
	return filepath.Join(dir, name)
}
