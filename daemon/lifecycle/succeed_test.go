package lifecycle

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/daemon/mounts"
	"github.com/gpucr/gpucr-fs/daemon/remotes"
	"github.com/gpucr/gpucr-fs/daemon/restores"
	"github.com/gpucr/gpucr-fs/index"
)

// A successor that cannot open the store at the moment tries again, as the guardian kills the tasks when successors
// end. What does not pass ends it at once.
func TestSuccessorTriesAgain(t *testing.T) {
	dir := newStore(t)
	// It cannot be read, which says nothing of the store.
	file := filepath.Join(dir, remotes.FileName)
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	const hello = 1 // how a guardian begins
	if _, err := unix.Write(pair[0], []byte{hello}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	o := Options{Dir: dir, Index: small(), Version: "test", Logger: slog.New(slog.DiscardHandler),
		Mount: func(context.Context, *index.Store, mounts.Request, mounts.OnAccess) (mounts.Mount, error) {
			return nil, &index.Error{Class: index.Invalid}
		}}
	go func() { ended <- succeed(ctx, o, restores.Serving{ID: "1", Checkpoint: "web"}, pair[1], pair[1]) }()
	select {
	case err := <-ended:
		t.Fatalf("the successor ended while the store could not be opened: %v", err)
	case <-time.After(time.Second):
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if index.ClassOf(err) != index.NotFound {
			t.Errorf("without the checkpoint it ended with %v", err)
		}
	case <-ctx.Done():
		t.Fatal("it goes on without the checkpoint")
	}
}
