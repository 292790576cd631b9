package fill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/fs"
	"github.com/gpucr/gpucr-fs/restore/vram"
)

// ErrNotMounted tells that images are not those of a sealed checkpoint in a mount whose daemon can be reached: the
// caller then reads the directory.
var ErrNotMounted = errors.New("not the images of a mounted store")

// tries is how often a fill that the daemon's death cut off is begun in all.
const tries = 3

// successorWait is how long a successor has to come; tests wait longer.
var successorWait = wire.Handover

// Images are those of a checkpoint in a store, known from a mount that may be gone since.
type Images struct{ source fs.Source }

// Open asks the mount that images is in which checkpoint they belong to. ErrNotMounted when the mount is not ours.
func Open(images string) (*Images, error) {
	source, ok, err := fs.SourceOf(images)
	if err != nil || !ok {
		return nil, errors.Join(ErrNotMounted, err)
	}
	return &Images{source}, nil
}

// Fill has the daemon of the store put a plan's buffer objects in place, straight from the store. It hands the plan
// over at once, which keeps the daemon, and has it filled when turn is closed (nil: at once too). ErrNotMounted when
// there is no daemon; ErrGone, in which case nothing is known of the contents, when the daemon and its successors were
// killed. Other errors are those of a fill right here.
func (m *Images) Fill(
	ctx context.Context,
	plan vram.Plan,
	opts vram.Options,
	turn <-chan struct{},
) (vram.Report, error) {
	source := m.source
	c, err := wire.DialPackets(ctx, source.Store)
	if errors.Is(err, wire.ErrNoDaemon) {
		return vram.Report{}, ErrNotMounted
	}
	for try := 1; ; try++ {
		var rep vram.Report
		if err == nil {
			rep, err = ask(ctx, c, source, plan, opts, turn)
		}
		if !errors.Is(err, wire.ErrGone) || try == tries || ctx.Err() != nil {
			return rep, err
		}
		if opts.Logger != nil {
			opts.Logger.Warn("the daemon was lost during a fill; beginning anew with its successor", "error", err)
		}
		if c, err = await(ctx, source.Store); err != nil {
			return vram.Report{}, err
		}
	}
}

// await waits for a daemon to listen again.
func await(ctx context.Context, dir string) (wire.Conn, error) {
	for since := time.Now(); ; {
		c, err := wire.DialPackets(ctx, dir)
		if !errors.Is(err, wire.ErrNoDaemon) {
			return c, err
		}
		if time.Since(since) > successorWait {
			return wire.Conn{}, fmt.Errorf("%w and has no successor", wire.ErrGone)
		}
		select {
		case <-ctx.Done():
			return wire.Conn{}, context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// ask is one try, and closes the connection.
func ask(ctx context.Context, c wire.Conn, source fs.Source, plan vram.Plan, opts vram.Options,
	turn <-chan struct{}) (vram.Report, error) {
	defer c.Close()
	// The daemon notices the close, and stops.
	defer context.AfterFunc(ctx, func() { c.Close() })()
	gone := func(err error) (vram.Report, error) {
		switch {
		case ctx.Err() != nil:
			return vram.Report{}, context.Cause(ctx)
		case errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET):
			return vram.Report{}, fmt.Errorf("fill: %w", wire.ErrGone)
		}
		return vram.Report{}, fmt.Errorf("fill through the daemon: %w", err)
	}
	if err := sendPlan(c, source, plan, opts, turn != nil); err != nil {
		return gone(err)
	}
	if turn != nil {
		over := make(chan struct{})
		defer close(over)
		go func() {
			select {
			case <-turn:
				c.Send(packet{Go: true}) // what becomes of it the answers tell
			case <-over:
			}
		}()
	}
	for {
		var p packet
		files, err := c.Receive(&p)
		wire.CloseFiles(files)
		switch {
		case err != nil:
			return gone(err)
		case p.Progress != nil:
			if opts.Progress != nil {
				opts.Progress(p.Progress.Done, p.Progress.Total)
			}
		case p.Done != nil:
			return p.Done.Report, p.Done.error(plan)
		default:
			return gone(errPacket)
		}
	}
}

// opening is how a fill begins, with the render nodes.
func opening(source fs.Source, plan vram.Plan, opts vram.Options) (*begin, []*os.File) {
	b := &begin{Checkpoint: source.Checkpoint, ID: source.ID, BOs: len(plan.BOs),
		Staging: opts.Staging, MaxBuffer: opts.MaxBuffer, Workers: opts.Workers,
		Engine: opts.Engine, Verify: opts.Verify}
	var nodes []*os.File
	for _, n := range plan.Nodes {
		b.Nodes, nodes = append(b.Nodes, n.Name), append(nodes, n.File)
	}
	return b, nodes
}

func sendPlan(c wire.Conn, source fs.Source, plan vram.Plan, opts vram.Options, held bool) error {
	opening, nodes := opening(source, plan, opts)
	opening.Held = held
	if err := c.Send(packet{Begin: opening}, nodes...); err != nil {
		return err
	}
	for rest := plan.BOs; len(rest) > 0; {
		part := rest[:min(len(rest), wire.MaxFDs)]
		rest = rest[len(part):]
		files := make([]*os.File, len(part))
		for i := range part {
			files[i] = part[i].Dmabuf
		}
		if err := c.Send(packet{BOs: part}, files...); err != nil {
			return err
		}
	}
	return nil
}

// error gives back what the daemon's fill returned.
func (d *done) error(plan vram.Plan) error {
	if d.Error == nil {
		return nil
	}
	err := d.Error.Err()
	if d.BO < 0 || d.BO >= len(plan.BOs) {
		return err
	}
	return &vram.Error{Op: d.Op, BO: plan.BOs[d.BO], Err: err}
}
