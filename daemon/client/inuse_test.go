package client

import (
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/talk"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// lock holds the store at dir as a daemon does.
func lock(t *testing.T, dir string) io.Closer {
	t.Helper()
	l, err := storage.Disk{}.Lock(filepath.Join(dir, "lock"), index.Holder(true))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// The store becomes free while a command tries to open it, in vain: it does not wait long for a change that has
// happened already.
func TestFreeDuringATry(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := lock(t, dir)
	var free time.Time
	tries := 0
	err := WhileInUse(t.Context(), dir, func() error {
		if tries++; tries == 8 { // the next pause is of seconds
			l.Close()
			free = time.Now()
		} else if tries > 8 {
			return nil
		}
		return &index.Error{Class: index.InUse, Err: index.ErrDaemonHolds}
	})
	if took := time.Since(free); err != nil || took > 2*time.Second {
		t.Errorf("%v, %v after it was free", err, took)
	}
}

// A mount that its daemon has taken away is unmounted when that has ended.
func TestUnmountedByADaemonThatLeaves(t *testing.T) {
	dir := t.TempDir()
	l := lock(t, dir)
	r := &UnmountAtResult{Dir: t.TempDir(), Store: dir}
	if err := r.withoutDaemon(newWait(dir).look(t.Context())); !errors.Is(err, index.ErrDaemonHolds) || r.Last {
		t.Errorf("while it has the store: %v, %+v", err, r)
	}
	l.Close()
	if err := r.withoutDaemon(newWait(dir).look(t.Context())); err != nil || !r.Last {
		t.Errorf("when it has ended: %v, %+v", err, r)
	}
}

// A restore whose daemon was killed does not wait long for a successor that has come and gone.
func TestRejoinNobody(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := lock(t, dir)
	time.AfterFunc(100*time.Millisecond, func() { l.Close() })
	begin := time.Now()
	if _, err := (&RestoreOptions{Wait: true}).rejoin(t.Context(), dir, "x", talk.Prepared{}); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > daemonTimeout/2 {
		t.Errorf("it was waited for for %v", took)
	}
}
