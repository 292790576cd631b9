package remotes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpucr/gpucr-fs/index"
)

// followPause is how long what was found out about moved chunks counts.
const followPause = 5 * time.Second

// follower looks where chunks have been moved in the remote store. The zero follower does not.
type follower struct {
	store atomic.Pointer[index.Store]

	mu   sync.Mutex // held while one looks
	last time.Time  // when somebody has looked
}

// Serve names the store that reads from the remote store. From then on it is told where chunks lie that were repacked,
// when it asks for a pack that is gone. Without a remote store, and for one that is open for reading only, it does
// nothing.
func (r *Remote) Serve(s *index.Store) {
	if r != nil && !s.ReadOnly() {
		r.follower.store.Store(s)
	}
}

// errReading is why a store does not look.
var errReading = errors.New("a store that is open for reading only does not look where content was moved; it may " +
	"have been repacked, and is found once the store is opened for writing")

// follow looks where chunks of the store lie that have been moved. The error says why that could not be found out.
func (r *Remote) follow(ctx context.Context) error {
	f := &r.follower
	n := f.store.Load()
	if n == nil {
		return errReading
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.last.IsZero() && time.Since(f.last) < followPause {
		return nil
	}
	s, err := r.Store(ctx)
	if err == nil {
		err = s.Follow(ctx, n)
	}
	if err != nil {
		r.log.Warn("it could not be seen whether chunks were moved in the remote store", "err", err)
		return fmt.Errorf("it could not be seen whether it was moved: %w", err)
	}
	f.last = time.Now()
	return nil
}
