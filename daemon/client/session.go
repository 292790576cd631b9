package client

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/gpucr/gpucr-fs/daemon/gpu"
	"github.com/gpucr/gpucr-fs/daemon/label"
	"github.com/gpucr/gpucr-fs/daemon/remotes"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// Session is access to a store, through its daemon if one runs.
type Session struct {
	store  *index.Store // nil when client is set
	remote *remotes.Remote
	client *client
	log    *slog.Logger

	unwritable error // see ReadOnly
}

// Connect gives access to the store at dir: through its daemon if one runs, else by opening it with o. Class NoStore,
// InUse with the holder in the text, Corrupt.
func Connect(ctx context.Context, dir string, o index.Options) (*Session, error) {
	return connectBy(ctx, dir, o, openToWrite)
}

func connectBy(ctx context.Context, dir string, o index.Options, open opener) (*Session, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	log := o.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	o.Cuts, o.Labels = gpu.Cuts, label.OfImages
	for w := newWait(abs); ; {
		c, err := newClient(ctx, abs)
		if err == nil {
			return &Session{client: c, log: log}, nil
		}
		if !errors.Is(err, wire.ErrNoDaemon) {
			return nil, err
		}
		r, err := remotes.Of(abs, &o, log)
		if err != nil {
			return nil, err
		}
		s, unwritable, err := open(ctx, abs, o)
		if err == nil {
			r.Serve(s)
			return &Session{store: s, remote: r, log: log, unwritable: unwritable}, nil
		}
		r.Close()
		if err := w.again(ctx, err); err != nil {
			return nil, err
		}
	}
}

// ConnectDaemon gives access through a running daemon only; ok is false when none runs.
func ConnectDaemon(ctx context.Context, dir string) (s *Session, ok bool, err error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, false, err
	}
	c, err := newClient(ctx, abs)
	if errors.Is(err, wire.ErrNoDaemon) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	return &Session{client: c, log: slog.New(slog.DiscardHandler)}, true, nil
}

// Here is the environment of operations where this process holds the store; nil where a daemon does.
func (s *Session) Here(st wire.Streams) *service.Env {
	if s.client != nil {
		return nil
	}
	return &service.Env{Store: s.store, Remote: s.remote, Log: s.log, Streams: st}
}

// Call runs an operation in the daemon.
func (s *Session) Call(ctx context.Context, name string, req, res any, st wire.Streams) error {
	return s.client.call(ctx, name, req, res, st)
}

// ThroughDaemon tells that a daemon holds the store.
func (s *Session) ThroughDaemon() bool { return s.client != nil }

// WaitDaemon returns when the daemon's process is gone.
func (s *Session) WaitDaemon(ctx context.Context) error {
	if s.client == nil {
		return nil
	}
	return s.client.waitExit(ctx)
}

// Hold keeps the daemon until ctx ends; nobody waits meanwhile for the daemon to leave. ErrGone when the daemon ends
// before.
func (s *Session) Hold(ctx context.Context) error {
	if s.client == nil {
		return nil
	}
	conn, err := wire.Operations.Dial(ctx, s.client.dir)
	if err != nil {
		return goneFor(err)
	}
	defer conn.Close()
	if err := askToStay(ctx, conn, wire.HoldPath+"?"+wire.LongHold); err != nil {
		return goneFor(err)
	}
	gone := make(chan struct{})
	defer s.client.onEnd(func() { close(gone) })()
	select {
	case <-gone:
		return wire.ErrGone
	case <-ctx.Done():
		return nil
	}
}

// goneFor tells a daemon that one was connected to, and that leaves, from other errors.
func goneFor(err error) error {
	if errors.Is(err, wire.ErrNoDaemon) {
		return wire.ErrGone
	}
	return err
}

// Close closes the store where this process holds it.
func (s *Session) Close() error {
	if s.client != nil {
		s.client.close()
		return nil
	}
	defer s.remote.Close()
	s.remote.SaveRequests()
	return s.store.Close()
}
