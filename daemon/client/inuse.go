package client

import (
	"context"
	"errors"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

const (
	// commandTimeout is how long is waited for one command that has the store open, in all for daemonTimeout.
	commandTimeout = 3 * time.Second
	// daemonTimeout is the same for a daemon that does not listen, or says that it leaves: it opens the store or closes
	// it. On a busy machine either takes seconds.
	daemonTimeout = time.Minute
	// The first pause before another try. The next ones are twice as long each, to longestPause: a try may start a
	// daemon, and many commands that try are in the way of the daemon that they wait for.
	firstPause   = 20 * time.Millisecond
	longestPause = 5 * time.Second
)

// wait is the wait of one command for a store that another process holds. One goroutine has it.
type wait struct {
	dir    string
	end    time.Time
	holder string    // the error of the last try, which names it
	until  time.Time // how long is waited for this one
	pause  time.Duration
	before state // as seen before the last try, where there was one
	tried  bool
}

// state is what shows of a store from outside, at little cost.
type state struct {
	listens bool // somebody takes connections
	held    bool
}

func newWait(dir string) *wait { return &wait{dir: dir, end: time.Now().Add(daemonTimeout)} }

// again waits until another try to open the store, or to reach its daemon, is worth while: until something has changed,
// at most for a while. err is why the last one failed, and is given back where it is not for another process that has
// the store, or for one that has it for too long.
func (w *wait) again(ctx context.Context, err error) error {
	if index.ClassOf(err) != index.InUse && !errors.Is(err, wire.ErrNoDaemon) {
		return err
	}
	now, seen := time.Now(), w.look(ctx)
	if holder := err.Error(); holder != w.holder {
		w.holder, w.until, w.pause = holder, now.Add(commandTimeout), firstPause
	}
	if seen.listens || errors.Is(err, index.ErrDaemonHolds) || errors.Is(err, wire.ErrNoDaemon) {
		w.until = w.end
	}
	if now.After(w.until) || now.After(w.end) {
		return err
	}
	if w.tried && seen != w.before { // it has changed during the try
		w.pause = firstPause
	}
	next := now.Add(min(w.pause, max(firstPause, time.Until(w.until))))
	w.pause = min(2*w.pause, longestPause)
	for w.tried, w.before = true, seen; w.before == seen && time.Now().Before(next); w.before = w.look(ctx) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(firstPause, time.Until(next))):
		}
	}
	return nil
}

func (w *wait) look(ctx context.Context) state {
	c, err := wire.Operations.Dial(ctx, w.dir)
	if err == nil {
		c.Close()
	}
	return state{err == nil, index.IsHeld(w.dir)}
}

// WhileInUse calls f, which opens the store at dir or asks its daemon, again while another process holds the store, for
// a bounded time. Its error is the last one of f.
func WhileInUse(ctx context.Context, dir string, f func() error) error {
	for w := newWait(dir); ; {
		err := f()
		if err == nil {
			return nil
		}
		if err := w.again(ctx, err); err != nil {
			return err
		}
	}
}
