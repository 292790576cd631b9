package lifecycle

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// progressEvery is the least time between two progress frames.
const progressEvery = 100 * time.Millisecond

func (d *Daemon) newServer() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+wire.OpsPath+"{name}", d.serveOp)
	mux.HandleFunc("POST "+wire.HoldPath, d.serveHold)
	return &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(d.log.Handler(), slog.LevelWarn),
	}
}

func (d *Daemon) serveHold(w http.ResponseWriter, r *http.Request) {
	if !d.lifetime.HoldClient() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	defer d.lifetime.Release()
	if r.URL.Query().Has(wire.LongHold) {
		d.parts.Staying.Add(1)
		defer d.parts.Staying.Add(-1)
	}
	w.WriteHeader(http.StatusOK)
	if err := http.NewResponseController(w).Flush(); err != nil {
		return
	}
	select {
	case <-r.Context().Done():
	case <-d.quit:
	}
}

func (d *Daemon) serveOp(w http.ResponseWriter, r *http.Request) {
	rc := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := wire.NewFrameWriter(w, rc.Flush)
	name := r.PathValue("name")
	op, ok := service.Find(name)
	if !ok {
		out.Finish(
			nil,
			&index.Error{
				Class: index.Unsupported,
				Op:    name,
				Err:   fmt.Errorf("the daemon (version %s) does not know this operation", d.o.Version),
				Hint:  "unmount and mount again, so that the daemon is of this program's version",
			},
		)
		return
	}
	if err := rc.EnableFullDuplex(); err != nil {
		out.Finish(nil, err)
		return
	}
	in := bufio.NewReaderSize(r.Body, 1<<20)
	req, err := wire.ReadLine(in)
	if err != nil {
		out.Finish(nil, &index.Error{Class: index.Invalid, Op: name, Err: fmt.Errorf("read the request: %w", err)})
		return
	}
	env := &service.Env{
		Store:   d.store,
		Remote:  d.remote,
		Daemon:  d.parts,
		Log:     d.log,
		Streams: wire.Streams{Out: out, Progress: throttle(out)},
	}
	if r.Header.Get(wire.StreamHeader) != "" {
		env.In = in
	} else if _, err := io.Copy(io.Discard, in); err != nil {
		// Reading to the end lets the server notice a client that goes away.
		return
	}
	start := time.Now()
	res, err := op.Serve(r.Context(), env, req)
	if err != nil {
		d.log.Warn("operation failed", "name", name, "seconds", time.Since(start).Seconds(), "error", err)
	} else {
		d.log.Debug("operation", "name", name, "seconds", time.Since(start).Seconds())
	}
	if ferr := out.Finish(res, err); ferr != nil && !errors.Is(ferr, http.ErrHandlerTimeout) {
		d.log.Debug("the client is gone", "name", name, "error", ferr)
	}
}

// throttle sends progress now and then; the last report of a finished operation may be left out, its result follows
// anyway.
func throttle(out *wire.FrameWriter) func(wire.Progress) {
	var mu sync.Mutex
	var last time.Time
	return func(p wire.Progress) {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); now.Sub(last) >= progressEvery {
			last = now
			_ = out.Progress(p) // a client that is gone cancels the operation by itself
		}
	}
}
