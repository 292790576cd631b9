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

// converse runs an operation that says Prepared first. Once it has, run does the caller's part, in another goroutine;
// then the verdict is sent.
func converse[Req, Res any](
	ctx context.Context,
	s *Session,
	op *service.Op[Req, Res],
	req Req,
	run func(context.Context, talk.Prepared) error,
	progress func(wire.Progress),
) (res Res, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, answer := io.Pipe()
	defer in.Close()
	// net/http waits for a body that is being read, also when the daemon or ctx has ended.
	defer s.client.onEnd(func() { answer.CloseWithError(wire.ErrGone) })()
	defer context.AfterFunc(ctx, func() { answer.CloseWithError(ctx.Err()) })()
	ran := make(chan error, 1)
	started := false
	out := talk.NewLines(func(line []byte) {
		var p talk.Prepared
		if json.Unmarshal(line, &p) != nil || started {
			return
		}
		started = true
		go func() {
			err := run(ctx, p)
			talk.GiveVerdict(answer, err == nil)
			answer.Close()
			ran <- err
		}()
	})
	res, err = op.Do(ctx, s, req, wire.Streams{In: in, Out: out, Progress: progress})
	if !started {
		return res, err
	}
	in.Close() // the daemon may be gone without having read the verdict
	if err != nil && !errors.Is(err, wire.ErrGone) {
		cancel() // without its daemon CRIU fails by itself, or has done all
	}
	// CRIU knows of a full disk, but not which, nor of the floor.
	if index.ClassOf(err) == index.NoSpace {
		<-ran
		return res, err
	}
	// CRIU's own error tells more than that it failed.
	if rerr := <-ran; rerr != nil && !errors.Is(err, wire.ErrGone) {
		return res, rerr
	} else if rerr != nil {
		return res, fmt.Errorf("%w (%w)", err, rerr)
	}
	return res, err
}
