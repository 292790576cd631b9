package fill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/daemon/profiles"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/restore/plugin/pending"
	plugin "github.com/gpucr/gpucr-fs/restore/plugin/wire"
	"github.com/gpucr/gpucr-fs/restore/vram"
)

// Server takes connections that carry descriptors. The helper of a restore hands over the GPUs' buffer objects, and the
// server fills them straight from the store, without the mount. A connection is one fill; when it breaks, the fill
// ends. Connections that pass directories go on to package talk.
type Server struct {
	o Options
	l *net.UnixListener
	// ctx ends the fills.
	ctx   context.Context
	done  chan struct{}
	conns sync.WaitGroup
	gates atomic.Int64 // fills under way that processes wait for
}

// Gates tells that processes wait for a fill before they run.
func (f *Server) Gates() bool { return f.gates.Load() > 0 }

// Options of a Server. All are needed.
type Options struct {
	Dir      string // that of the socket
	Store    *index.Store
	Lifetime Holder
	Talks    Taker
	Log      *slog.Logger
}

// Holder keeps the daemon while a client is connected.
type Holder interface {
	// HoldClient keeps the daemon until Release; false when it leaves already.
	HoldClient() bool
	Release()
}

// Taker takes connections that pass the directories of a restore or dump.
type Taker interface {
	// Take keeps the connection of a request open as long as it serves. It closes the files.
	Take(c wire.Conn, id string, files []*os.File) error
}

// Listen serves until Close; the fills end with ctx. The caller holds the store: any socket found there is a dead
// daemon's.
func Listen(ctx context.Context, o Options) (*Server, error) {
	l, err := wire.Descriptors.Listen(o.Dir)
	if err != nil {
		return nil, err
	}
	f := &Server{o: o, l: l, ctx: ctx, done: make(chan struct{})}
	go f.accept()
	return f, nil
}

func (f *Server) accept() {
	defer close(f.done)
	for {
		c, err := wire.Accept(f.l, func(err error) {
			f.o.Log.Error("no connection for fills, restores and dumps can be taken now, trying again", "error", err)
		})
		if err != nil {
			return // closed
		}
		if uid, ok, err := wire.MayAsk(c); !ok {
			f.o.Log.Warn("refused a fill", "uid", uid, "error", err)
			c.Close()
			continue
		}
		if !f.o.Lifetime.HoldClient() {
			c.Close()
			continue
		}
		f.conns.Go(func() {
			defer f.o.Lifetime.Release()
			defer c.Close()
			f.serve(wire.Conn{UnixConn: c})
		})
	}
}

// Close takes no more fills; clients of fills that are under way notice by the connection. Wait waits for them.
func (f *Server) Close() {
	f.l.Close()
	<-f.done
	wire.Descriptors.Remove(f.o.Dir)
}

// Wait returns when nobody is connected any more, after Close and the end of the fills.
func (f *Server) Wait() { f.conns.Wait() }

func (f *Server) serve(c wire.Conn) {
	ctx, cancel := context.WithCancelCause(f.ctx)
	defer cancel(nil)
	// A client that stops in the middle of its request is not waited for for ever; afterwards it says nothing more.
	if err := c.SetReadDeadline(time.Now().Add(wire.Timeout)); err != nil {
		return
	}
	defer context.AfterFunc(ctx, func() { c.SetReadDeadline(time.Now()) })()
	var first packet
	files, err := c.Receive(&first)
	if err == nil && first.Hand != nil {
		if err = errors.Join(c.SetReadDeadline(time.Time{}), f.o.Talks.Take(c, first.Hand.ID, files)); err != nil {
			f.o.Log.Warn("the directories of a restore or dump were not taken", "error", err)
		}
		return
	}
	// The checkpoint is kept from now on, also while a fill waits for its turn: a successor may have to begin it anew.
	var cp *index.Checkpoint
	var missing error
	if err == nil && first.Begin != nil {
		var release func()
		if cp, release, missing = f.keep(first.Begin); missing == nil {
			defer func() {
				if f.ctx.Err() == nil { // else a successor needs it
					release()
				}
			}()
		}
	}
	var req *request
	if err == nil && first.Begin != nil && first.Begin.Plugin {
		err = c.SetReadDeadline(time.Time{}) // it has announced the fill, and waits for its turn
	}
	if err == nil {
		req, err = receiveRequest(c, first, files)
	}
	if err != nil {
		if first.Begin != nil && first.Begin.Plugin && errors.Is(err, io.ErrUnexpectedEOF) {
			f.o.Log.Info("a fill was announced and is not wanted any more")
			return
		}
		f.o.Log.Warn("a fill was not understood", "error", err)
		f.finish(c, req, vram.Report{}, err)
		return
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil || ctx.Err() != nil {
		req.close()
		return
	}
	if err = missing; err == nil && req.begin.Held {
		if heard := hear(c); heard != nil {
			req.close()
			f.endAbandoned() // nobody waits for an answer
			return
		}
	}
	gone := lookOut(c, cancel)
	var rep vram.Report
	if err == nil {
		rep, err = f.fill(ctx, cancel, c, cp, req)
	}
	lost := context.Cause(ctx) != nil && f.ctx.Err() == nil
	req.close()             // before the answer: the memory is then held by nobody here
	if f.ctx.Err() == nil { // else a successor may do it: to the client this daemon is gone
		f.finish(c, req, rep, err)
	}
	c.CloseRead()
	<-gone
	if lost {
		f.endAbandoned()
	}
}

// lookOut cancels when who asked for a fill is gone, and closes the channel then.
func lookOut(c wire.Conn, cancel context.CancelCauseFunc) <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		files, err := c.Receive(&packet{})
		wire.CloseFiles(files)
		if err == nil {
			err = errPacket
		}
		cancel(fmt.Errorf("who asked for the fill is gone: %w", err))
	}()
	return gone
}

// dying is how long the kernel may take to close what processes had that were killed at once.
const dying = time.Second

// endTries is how often endAbandoned tries, where processes cannot be looked at or ended for a moment.
const endTries = 5

// endAbandoned ends the processes whose fill was lost with its helper, where none of those lives that watch over them.
func (f *Server) endAbandoned() {
	var err error
	for range endTries {
		select {
		case <-time.After(dying):
		case <-f.ctx.Done():
			return
		}
		err = pending.EndAbandoned(pending.Path, func(pid int) {
			f.o.Log.Error(
				"process ended: the rest of its GPU memory did not come", "pid", pid, "error", pending.ErrAbandoned,
			)
		})
		if err == nil {
			return
		}
	}
	f.o.Log.Warn("processes whose GPU memory does not come may stand still", "error", err)
}

// hear waits for the go of a fill that is held.
func hear(c wire.Conn) error {
	var p packet
	files, err := c.Receive(&p)
	wire.CloseFiles(files)
	if err == nil && !p.Go {
		err = errPacket
	}
	return err
}

// keep gives the checkpoint that a request names by its id, and keeps it until release is called. It may have got
// another name since it was mounted.
func (f *Server) keep(b *begin) (cp *index.Checkpoint, release func(), err error) {
	cp, err = f.o.Store.Checkpoint(b.ID)
	if err == nil && cp.Info().ID != b.ID {
		err = &index.Error{
			Class:      index.NotFound,
			Op:         "fill",
			Checkpoint: b.Checkpoint,
			Err:        errors.New("the checkpoint is gone"),
		}
	}
	if err != nil {
		return nil, nil, err
	}
	release, err = cp.Keep()
	return cp, release, err
}

func (f *Server) fill(
	ctx context.Context,
	cancel context.CancelCauseFunc,
	c wire.Conn,
	cp *index.Checkpoint,
	req *request,
) (vram.Report, error) {
	if req.begin.Plugin {
		f.gates.Add(1)
		defer f.gates.Add(-1)
	}
	opts := vram.Options{
		Staging: req.begin.Staging, MaxBuffer: req.begin.MaxBuffer, Workers: req.begin.Workers,
		Engine: req.begin.Engine, Verify: req.begin.Verify,
		Logger:   f.o.Log,
		Progress: req.progress(c, cancel),
	}
	var err error
	if opts.Profile, _, err = profiles.Load(f.o.Store, cp.Info().ID, f.o.Log); err != nil {
		f.o.Log.Warn("the profile does not serve the fill", "checkpoint", req.begin.Checkpoint, "error", err)
	}
	start := time.Now()
	rep, err := vram.Fill(ctx, vram.Checkpoint{Checkpoint: cp}, req.plan, opts)
	log := f.o.Log.With(
		"checkpoint", req.begin.Checkpoint, "bos", rep.BOs, "bytes", rep.Bytes, "seconds",
		time.Since(start).Seconds(),
	)
	if err != nil {
		log.Error("filling buffer objects failed", "error", err)
	} else {
		log.Info("filled buffer objects", "dma_busy", rep.BusyShare(), "verified", rep.Verified)
	}
	return rep, err
}

func (f *Server) finish(c wire.Conn, req *request, rep vram.Report, err error) {
	if e := finish(c, req, rep, err); e != nil {
		f.o.Log.Debug("who asked for a fill is gone", "error", e)
	}
}

// progress tells who has asked how far a fill is; cancel is called when it does not listen.
func (r *request) progress(c wire.Conn, cancel context.CancelCauseFunc) func(done, total uint64) {
	return func(done, total uint64) {
		var err error
		if r.begin.Plugin {
			err = plugin.Over(c.UnixConn).Send(&plugin.Message{Type: plugin.Working, Size: done, PrivSize: total})
		} else {
			err = c.Send(packet{Progress: &progress{done, total}})
		}
		if err != nil {
			cancel(fmt.Errorf("who asked for the fill does not listen: %w", err))
		}
	}
}

// finish tells who has asked how a fill ended.
func finish(c wire.Conn, req *request, rep vram.Report, err error) error {
	if req != nil && req.begin.Plugin {
		m := &plugin.Message{Type: plugin.OK}
		if m.SetText(rep.String()); err != nil {
			m.Status = -int32(unix.EIO)
			m.SetText(err.Error())
		}
		return plugin.Over(c.UnixConn).Send(m)
	}
	answer := &done{Report: rep, BO: -1}
	if err != nil {
		answer.Error = wire.NewError(err)
		var boErr *vram.Error
		if errors.As(err, &boErr) && req != nil {
			answer.Op, answer.Error.Text = boErr.Op, boErr.Err.Error()
			for i, bo := range req.plan.BOs {
				if bo == boErr.BO {
					answer.BO = i
				}
			}
		}
	}
	return c.Send(packet{Done: answer})
}

// request is what a client wants.
type request struct {
	begin begin
	plan  vram.Plan
}

func (r *request) close() {
	for _, n := range r.plan.Nodes {
		n.File.Close()
	}
	for _, bo := range r.plan.BOs {
		bo.Dmabuf.Close()
	}
}

// receiveRequest takes the rest of a request that begins with p.
func receiveRequest(c wire.Conn, p packet, files []*os.File) (*request, error) {
	if p.Begin == nil || len(files) != len(p.Begin.Nodes) || p.Begin.BOs < 0 || p.Begin.BOs > maxBOs {
		wire.CloseFiles(files)
		return nil, errPacket
	}
	r := &request{begin: *p.Begin}
	for i, f := range files {
		r.plan.Nodes = append(r.plan.Nodes, vram.Node{File: f, Name: p.Begin.Nodes[i]})
	}
	for len(r.plan.BOs) < p.Begin.BOs {
		var part packet
		files, err := c.Receive(&part)
		if err == nil &&
			(len(part.BOs) == 0 || len(part.BOs) != len(files) || len(r.plan.BOs)+len(files) > p.Begin.BOs) {
			wire.CloseFiles(files)
			err = errPacket
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			r.close()
			return nil, err
		}
		for i, f := range files {
			part.BOs[i].Dmabuf = f
		}
		r.plan.BOs = append(r.plan.BOs, part.BOs...)
	}
	return r, nil
}
