package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
	bofill "github.com/gpucr/gpucr-fs/restore/server"
)

// filler serves store/fill.sock. Directories of restores and dumps go over it, see handed.go. The helper of a restore hands over the GPUs' buffer objects, and the daemon fills them from the store, without the way through
// the mount. A connection is one fill; when it breaks, the fill ends.
type filler struct {
	d *Daemon
	l *net.UnixListener
	// ctx ends the fills.
	ctx  context.Context
	stop context.CancelFunc
	done chan struct{}
}

// startFiller listens. The caller holds the store: any socket found there is a dead daemon's.
func startFiller(d *Daemon) (*filler, error) {
	l, err := wire.Descriptors.Listen(d.home.dir)
	if err != nil {
		return nil, err
	}
	f := &filler{d: d, l: l, done: make(chan struct{})}
	f.ctx, f.stop = context.WithCancel(context.Background())
	go f.accept()
	return f, nil
}

func (f *filler) accept() {
	defer close(f.done)
	for {
		c, err := f.l.AcceptUnix()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				f.d.log.Error("the socket for fills failed", "error", err)
			}
			return
		}
		if uid, ok, err := wire.MayAsk(c); !ok {
			f.d.log.Warn("refused a fill", "uid", uid, "error", err)
			c.Close()
			continue
		}
		if !f.d.hold() {
			c.Close()
			continue
		}
		f.d.wg.Go(func() {
			defer f.d.release()
			defer c.Close()
			f.serve(wire.Conn{UnixConn: c})
		})
	}
}

// close ends the fills that are under way; who asked for them notices by the connection. The daemon's wg waits for them.
func (f *filler) close() {
	f.stop()
	f.l.Close()
	<-f.done
	wire.Descriptors.Remove(f.d.home.dir)
}

func (f *filler) serve(c wire.Conn) {
	ctx, cancel := context.WithCancelCause(f.ctx)
	defer cancel(nil)
	// A client that stops in the middle of its request is not waited for for ever; afterwards it says nothing more.
	if err := c.SetReadDeadline(time.Now().Add(wire.Patience)); err != nil {
		return
	}
	defer context.AfterFunc(ctx, func() { c.SetReadDeadline(time.Now()) })()
	var first fillPacket
	files, err := c.Receive(&first)
	if err == nil && first.Hand != nil {
		if err = errors.Join(c.SetReadDeadline(time.Time{}), f.hand(c, first.Hand.ID, files)); err != nil {
			f.d.log.Warn("the directories of a restore or dump were not taken", "error", err)
		}
		return
	}
	var req *fillRequest
	if err == nil {
		req, err = receiveFill(c, first, files)
	}
	if err != nil {
		f.d.log.Warn("a fill was not understood", "error", err)
		f.finish(c, req, bofill.Report{}, err)
		return
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		req.close()
		return
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		files, err := c.Receive(&fillPacket{})
		wire.CloseFiles(files)
		if err == nil {
			err = errPacket
		}
		cancel(fmt.Errorf("who asked for the fill is gone: %w", err))
	}()
	rep, err := f.fill(ctx, cancel, c, req)
	req.close()             // before the answer: the memory is then held by nobody here
	if f.ctx.Err() == nil { // else a successor may do it: to the client this daemon is gone
		f.finish(c, req, rep, err)
	}
	c.CloseRead()
	<-gone
}

func (f *filler) fill(ctx context.Context, cancel context.CancelCauseFunc, c wire.Conn, req *fillRequest) (bofill.Report, error) {
	cp, err := f.d.store.Checkpoint(req.begin.Checkpoint)
	if err != nil {
		return bofill.Report{}, err
	}
	if id := cp.Info().ID; id != req.begin.ID {
		return bofill.Report{}, &index.Error{Class: index.NotFound, Op: "fill", Checkpoint: req.begin.Checkpoint, Err: errors.New("another checkpoint has this name now")}
	}
	opts := bofill.Options{
		Staging: req.begin.Staging, MaxBuffer: req.begin.MaxBuffer, Workers: req.begin.Workers, Engine: req.begin.Engine, Verify: req.begin.Verify,
		Logger: f.d.log,
		Progress: func(done, total uint64) {
			if err := c.Send(fillPacket{Progress: &fillProgress{done, total}}); err != nil {
				cancel(fmt.Errorf("who asked for the fill does not listen: %w", err))
			}
		},
	}
	if opts.Profile, _, err = f.d.loadProfile(cp.Info().ID); err != nil {
		f.d.log.Warn("the profile does not serve the fill", "checkpoint", req.begin.Checkpoint, "error", err)
	}
	start := time.Now()
	rep, err := bofill.Fill(ctx, bofill.Checkpoint{Checkpoint: cp}, req.plan, opts)
	log := f.d.log.With("checkpoint", req.begin.Checkpoint, "bos", rep.BOs, "bytes", rep.Bytes, "seconds", time.Since(start).Seconds())
	if err != nil {
		log.Error("filling buffer objects failed", "error", err)
	} else {
		log.Info("filled buffer objects", "dma_busy", rep.BusyShare(), "verified", rep.Verified)
	}
	return rep, err
}

func (f *filler) finish(c wire.Conn, req *fillRequest, rep bofill.Report, err error) {
	done := &fillDone{Report: rep, BO: -1}
	if err != nil {
		done.Error = wire.NewError(err)
		var boErr *bofill.Error
		if errors.As(err, &boErr) && req != nil {
			done.Op, done.Error.Text = boErr.Op, boErr.Err.Error()
			for i, bo := range req.plan.BOs {
				if bo == boErr.BO {
					done.BO = i
				}
			}
		}
	}
	if err := c.Send(fillPacket{Done: done}); err != nil {
		f.d.log.Debug("who asked for a fill is gone", "error", err)
	}
}

// fillRequest is what a client wants.
type fillRequest struct {
	begin fillBegin
	plan  bofill.Plan
}

func (r *fillRequest) close() {
	for _, n := range r.plan.Nodes {
		n.File.Close()
	}
	for _, bo := range r.plan.BOs {
		bo.Dmabuf.Close()
	}
}

// receiveFill takes the rest of a request that begins with p.
func receiveFill(c wire.Conn, p fillPacket, files []*os.File) (*fillRequest, error) {
	if p.Begin == nil || len(files) != len(p.Begin.Nodes) || p.Begin.BOs < 0 || p.Begin.BOs > maxFillBOs {
		wire.CloseFiles(files)
		return nil, errPacket
	}
	r := &fillRequest{begin: *p.Begin}
	for i, f := range files {
		r.plan.Nodes = append(r.plan.Nodes, bofill.Node{File: f, Name: p.Begin.Nodes[i]})
	}
	for len(r.plan.BOs) < p.Begin.BOs {
		var part fillPacket
		files, err := c.Receive(&part)
		if err == nil && (len(part.BOs) == 0 || len(part.BOs) != len(files) || len(r.plan.BOs)+len(files) > p.Begin.BOs) {
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
