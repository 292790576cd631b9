package client

import (
	"context"
	"errors"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

const (
	// commandTimeout is how long is waited for a command that has the store open for a moment.
	commandTimeout = time.Second
	// daemonTimeout is the same for a daemon that does not listen, or says that it leaves: it opens the store or closes
	// it. On a busy machine either takes seconds.
	daemonTimeout = time.Minute
	// The first pause before another try. The next ones are twice as long each, to longestPause: a try may start a
	// daemon, and many commands that try are in the way of the daemon that they wait for.
	firstPause   = 20 * time.Millisecond
	longestPause = time.Second
)

// wait is the wait of one command for a store that another process holds. One goroutine has it.
type wait struct {
	dir          string
	begin, until time.Time
	pause        time.Duration
}

func newWait(dir string) *wait {
	now := time.Now()
	return &wait{dir: dir, begin: now, until: now.Add(commandTimeout), pause: firstPause}
}

// again waits until another try to open the store, or to reach its daemon, is worth while. err is why the last one
// failed, and is given back where it is not for another process that has the store, or for one that has it for too
// long.
func (w *wait) again(ctx context.Context, err error) error {
	if index.ClassOf(err) != index.InUse && !errors.Is(err, wire.ErrNoDaemon) {
		return err
	}
	now := time.Now()
	if errors.Is(err, index.ErrDaemonHolds) || errors.Is(err, wire.ErrNoDaemon) {
		// A command that comes after the daemon has its own time.
		w.until = earlier(now.Add(commandTimeout), w.begin.Add(daemonTimeout))
	}
	if now.After(w.until) {
		return err
	}
	end := now.Add(w.pause)
	w.pause = min(2*w.pause, longestPause)
	listened := w.listens(ctx)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(firstPause, time.Until(end))):
		}
		if !time.Now().Before(end) || !listened && w.listens(ctx) {
			return nil
		}
	}
}

func (w *wait) listens(ctx context.Context) bool {
	c, err := wire.Operations.Dial(ctx, w.dir)
	if err == nil {
		c.Close()
	}
	return err == nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
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
