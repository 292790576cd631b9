package fill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/fs"
	"github.com/gpucr/gpucr-fs/restore/vram"
)

// Packet is what is left to send of a fill that was announced: the bytes, with the dma-bufs of buffer objects of these
// indices in their image.
type Packet struct {
	BOs   []uint32
	Bytes []byte
}

// Packets are those of a plan.
func Packets(plan vram.Plan) (out []Packet, err error) {
	for rest := plan.BOs; len(rest) > 0; {
		part := rest[:min(len(rest), wire.MaxFDs)]
		rest = rest[len(part):]
		p := Packet{}
		for _, bo := range part {
			p.BOs = append(p.BOs, uint32(bo.Index))
		}
		if p.Bytes, err = json.Marshal(packet{BOs: part}); err != nil {
			return nil, err
		}
		if len(p.Bytes) > wire.MaxPacket {
			return nil, fmt.Errorf("a packet of %d bytes is too long", len(p.Bytes))
		}
		out = append(out, p)
	}
	return out, nil
}

// Announce opens a fill for somebody else to make, who sends the packets over the connection and is answered by
// messages of the plugin. again says that a daemon was there. ErrNotMounted and ErrGone are as for Fill.
func (m *Images) Announce(ctx context.Context, plan vram.Plan, opts vram.Options, again bool) (*os.File, error) {
	dial := wire.DialPackets
	if again {
		dial = await
	}
	c, err := dial(ctx, m.source.Store)
	if errors.Is(err, wire.ErrNoDaemon) {
		return nil, ErrNotMounted
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return announce(c, m.source, plan, opts)
}

func announce(c wire.Conn, source fs.Source, plan vram.Plan, opts vram.Options) (*os.File, error) {
	opening, nodes := opening(source, plan, opts)
	opening.Plugin = true
	if err := c.Send(packet{Begin: opening}, nodes...); err != nil {
		return nil, fmt.Errorf("announce a fill: %w", err)
	}
	return c.File()
}

// AnnounceHere is Announce for the files of a directory, whatever it is: serve fills, in this process, until it is done
// or the other side is gone.
func AnnounceHere(images string, plan vram.Plan, opts vram.Options) (_ *os.File, serve func(context.Context),
	err error) {
	theirs, ours, err := wire.PacketPair()
	if err != nil {
		return nil, nil, err
	}
	defer theirs.Close()
	f, err := announce(theirs, fs.Source{}, plan, opts)
	if err != nil {
		ours.Close()
		return nil, nil, err
	}
	return f, func(ctx context.Context) {
		defer ours.Close()
		serveHere(ctx, ours, images, opts)
	}, nil
}

// serveHere makes one fill.
func serveHere(ctx context.Context, c wire.Conn, images string, opts vram.Options) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { c.CloseRead() })()
	var first packet
	files, err := c.Receive(&first)
	if err != nil {
		return
	}
	req, err := receiveRequest(c, first, files)
	if err != nil {
		return // who would have it filled is gone
	}
	gone := lookOut(c, cancel)
	opts.Progress = req.progress(c, cancel)
	rep, err := vram.Fill(ctx, vram.Dir(images), req.plan, opts)
	req.close()
	_ = finish(c, req, rep, err) // who is gone needs no answer
	c.CloseRead()
	<-gone
}
