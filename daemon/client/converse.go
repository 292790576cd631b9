package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/talk"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// words are what an operation says in a conversation. One goroutine has them.
type words struct {
	prepared func(talk.Prepared)
	served   func(talk.Served)
	started  bool          // Prepared was said
	serves   chan struct{} // closed when what CRIU needs is there
	ready    bool          // serves is closed
	failed   bool          // Served has told of a failure
	again    bool          // and that it may not be met again
}

// line takes a line of the operation's output.
func (w *words) line(b []byte) {
	if !w.started {
		var p talk.Prepared
		if json.Unmarshal(b, &p) != nil {
			return
		}
		w.started = true
		if w.ready = !p.Early; p.Early {
			p.Served = w.wait
		}
		w.prepared(p)
		return
	}
	var s talk.Served
	if json.Unmarshal(b, &s) != nil {
		return
	}
	w.failed, w.again = s.Failed, s.Again
	w.served(s)
	if !w.ready && !s.Failed {
		w.ready = true
		close(w.serves)
	}
}

func (w *words) wait(ctx context.Context) error {
	select {
	case <-w.serves:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// converse runs an operation that says Prepared first. Once it has, run does the caller's part, in another goroutine;
// then the verdict is sent. run's context ends where the operation fails meanwhile. served is called for what a restore
// says after Prepared.
func converse[Req, Res any](
	ctx context.Context,
	s *Session,
	op *service.Op[Req, Res],
	req Req,
	run func(context.Context, talk.Prepared) error,
	served func(talk.Served),
	progress func(wire.Progress),
) (res Res, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, answer := io.Pipe()
	defer in.Close()
	// net/http waits for a body that is being read, also when the daemon or ctx has ended.
	defer s.client.onEnd(func() { answer.CloseWithError(wire.ErrGone) })()
	running, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(ctx, func() { answer.CloseWithError(ctx.Err()) })()
	ran := make(chan error, 1)
	w := &words{serves: make(chan struct{})}
	w.prepared = func(p talk.Prepared) {
		go func() {
			err := run(running, p)
			talk.GiveVerdict(answer, err == nil || isLate(err))
			answer.Close()
			ran <- err
		}()
	}
	w.served = func(s talk.Served) {
		if s.Failed {
			stop() // the daemon waits for the verdict
		}
		served(s)
	}
	res, err = op.Do(ctx, s, req, wire.Streams{In: in, Out: talk.NewLines(w.line), Progress: progress})
	if !w.started {
		return res, err
	}
	in.Close() // the daemon may be gone without having read the verdict
	gone := errors.Is(err, wire.ErrGone)
	if err != nil && !(gone && w.ready) {
		cancel() // without its daemon CRIU fails by itself, or has done all
	}
	rerr := <-ran
	switch {
	case rerr == nil:
		return res, err
	case w.failed && w.again:
		return res, fmt.Errorf("%w, %w", err, ErrAgain)
	case w.failed, gone && !w.ready:
		return res, err // CRIU was ended for that
	case index.ClassOf(err) == index.NoSpace:
		return res, err // CRIU knows of a full disk, but not which, nor of the floor
	case gone:
		return res, fmt.Errorf("%w (%w)", err, rerr)
	case isLate(rerr):
		return res, errors.Join(rerr, err)
	}
	return res, rerr // CRIU's own error tells more than that it failed
}

func isLate(err error) bool {
	var late *talk.Late
	return errors.As(err, &late)
}
