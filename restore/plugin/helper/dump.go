package helper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
	"github.com/gpucr/gpucr-fs/kfd/topology"
	"github.com/gpucr/gpucr-fs/restore/plugin/pending"
	"github.com/gpucr/gpucr-fs/restore/plugin/wire"
	"github.com/gpucr/gpucr-fs/restore/vram"
)

// errNotOurs says that a device is not the KFD's.
var errNotOurs = fmt.Errorf("no GPU of the KFD: %w", unix.ENOTSUP)

// hooks42 is how many hooks CRIU 4.2 has; later ones have more, and another
// schema.
const hooks42 = 13

// dump is one run of criu dump. Its fields belong to the goroutine that serves
// the control connection.
type dump struct {
	*session
	schema  image.Schema
	user    map[uint32]uint32 // GPU ids: of this machine → as processes know them
	renders []renderFile
	paused  []*os.File          // /dev/kfd of processes that were told to pause
	nodes   map[string]*os.File // render nodes open for their handles
	known   map[uint64]uint32   // handles by object: what an image has, or is about to
	kept    []*os.File          // dma-bufs of some of these, which keep their inode numbers
	dmabufs []dmabufFile
	current *kfdDump
}

// renderFile is an image of a render node as it was written.
type renderFile struct {
	id, minor uint32
	gpu       uint32 // of this machine
	user      uint32 // as written
	bos       []*imagepb.RenderBO
}

// kfdDump is a process whose state is on its way here.
type kfdDump struct {
	msg     *wire.Message
	mem     *shared
	dmabufs []*os.File // by index of the BO
}

func (k *kfdDump) close() {
	k.mem.close()
	closeAll(k.dmabufs)
}

func (p *session) dump(ctx context.Context, hooks uint32) error {
	d := &dump{session: p, schema: p.opts.Schema, user: map[uint32]uint32{}, nodes: map[string]*os.File{},
		known: map[uint64]uint32{}}
	switch {
	case d.schema != image.SchemaAny:
	case hooks > hooks42:
		d.schema = image.SchemaLater
	default:
		d.schema = image.Schema42
	}
	defer func() {
		if d.current != nil {
			d.current.close()
		}
		closeAll(d.paused)
		d.letGo()
	}()
	for {
		m, files, err := p.receive(ctx)
		if err != nil {
			return errors.Join(err, d.unpauseAll())
		}
		done, err := d.handle(ctx, m, files)
		if err != nil {
			return errors.Join(err, d.unpauseAll())
		}
		if done {
			p.images.Close()
			d.letGo()
			err := answer(p.control, wire.OK, "", nil)
			if m.Count > 0 {
				p.control.Close()
				<-p.criu.ended
				err = errors.Join(err, d.unpauseSurvivors())
			}
			return err
		}
	}
}

// letGo gives the buffer objects back: the next restore may need their memory.
func (d *dump) letGo() {
	closeAll(d.kept)
	for _, f := range d.nodes {
		f.Close()
	}
	d.kept, d.nodes = nil, nil
}

// handle does what one message asks for. Its error is about the connection.
func (d *dump) handle(ctx context.Context, m *wire.Message, files []*os.File) (done bool, err error) {
	switch m.Type {
	case wire.DumpRender:
		defer closeAll(files)
		if len(files) != 1 {
			return false, wire.ErrProtocol
		}
		return false, answer(d.control, wire.OK, "", d.render(ctx, m.ID, m.Minor, files[0]))
	case wire.DumpDmabuf:
		if len(files) != 1 {
			closeAll(files)
			return false, wire.ErrProtocol
		}
		taken, err := d.dmabuf(ctx, m.ID, files[0])
		if !taken {
			files[0].Close()
		}
		return false, answer(d.control, wire.OK, "", err)
	case wire.Pause:
		d.paused = append(d.paused, files...)
		return false, nil
	case wire.DumpKFD:
		if len(files) != 1 {
			closeAll(files)
			return false, wire.ErrProtocol
		}
		mem, err := mapShared(files[0], m.Size)
		if err != nil {
			return false, err
		}
		if d.current != nil {
			d.current.close()
		}
		d.current = &kfdDump{msg: m, mem: mem, dmabufs: make([]*os.File, m.NumBOs)}
		return false, nil
	case wire.BOs:
		if d.current == nil || !place(d.current.dmabufs, m, files) {
			closeAll(files)
			return false, wire.ErrProtocol
		}
		return false, nil
	case wire.DumpGo:
		closeAll(files)
		if d.current == nil {
			return false, wire.ErrProtocol
		}
		stop := working(d.control)
		text, err := d.process(ctx, d.current)
		stop()
		d.current.close()
		d.current = nil
		if err != nil {
			d.opts.Logger.Error("dump failed", "err", err)
		}
		return false, answer(d.control, wire.OK, text, err)
	case wire.Resume, wire.Bye:
		closeAll(files)
		return m.Type == wire.Bye, nil
	}
	closeAll(files)
	return false, fmt.Errorf("message %d in a dump: %w", m.Type, wire.ErrProtocol)
}

// place puts the descriptors of a BOS message where they belong.
func place(dmabufs []*os.File, m *wire.Message, files []*os.File) bool {
	n := uint64(len(dmabufs))
	if uint64(m.Count) != uint64(len(files)) || uint64(m.First)+uint64(m.Count) > n {
		return false
	}
	for i, f := range files {
		if dmabufs[int(m.First)+i] != nil {
			return false
		}
		dmabufs[int(m.First)+i] = f
	}
	return true
}

// render writes the image of a render node, with what buffer objects it has of its own.
// Its GPU has the id that processes know, which a process that is dumped later may
// tell.
func (d *dump) render(ctx context.Context, id, minor uint32, node *os.File) error {
	if d.opts.Refuse != nil {
		return d.opts.Refuse
	}
	sys, err := d.hostTopology()
	if err != nil {
		return err
	}
	for _, g := range sys.GPUs() {
		if g.Props[topology.DRMRenderMinor] == uint64(minor) {
			bos, err := d.renderObjects(ctx, node, id, minor, g.GPUID)
			if err != nil {
				return fmt.Errorf("render node renderD%d: %w", minor, err)
			}
			r := renderFile{id: id, minor: minor, gpu: g.GPUID, user: d.userID(g.GPUID), bos: bos}
			if err := d.writeRender(r); err != nil {
				return err
			}
			d.renders = append(d.renders, r)
			return nil
		}
	}
	return errNotOurs
}

func (d *dump) writeRender(r renderFile) error {
	m := &imagepb.RenderNode{GpuId: proto.Uint32(r.user)}
	if d.schema == image.SchemaLater || len(r.bos) > 0 {
		m.Id, m.DrmRenderMinor, m.Bos = proto.Uint32(r.id), proto.Uint32(r.minor), r.bos
		m.NumOfBos = proto.Uint64(uint64(len(r.bos)))
	}
	b, err := image.EncodeRenderNode(m, d.schema)
	if err != nil {
		return err
	}
	return d.writeImage(image.Name{Kind: image.RenderNodeFile, ID: int(r.id)}.String(), b)
}

// process writes all images of a process: contents, then the process image.
func (d *dump) process(ctx context.Context, k *kfdDump) (string, error) {
	if d.opts.Refuse != nil {
		return "", d.opts.Refuse
	}
	began := time.Now()
	if n := len(d.paused); n > 0 {
		who := func() (int, error) { return owner(d.paused[n-1]) }
		if err := pending.Await(ctx, d.opts.Pending, who); err != nil {
			return "", fmt.Errorf("wait for GPU memory that a restore still brings: %w", err)
		}
	}
	sys, err := d.hostTopology()
	if err != nil {
		return "", err
	}
	msg, actual, err := processMessage(k, sys)
	if err != nil {
		return "", err
	}
	if err := d.learn(actual); err != nil {
		return "", err
	}
	id := int(k.msg.ID)
	layout, err := image.ProcessLayout(id, msg)
	if err != nil {
		return "", err
	}
	plan, err := makePlan(msg, layout, k.dmabufs, func(user uint32) uint32 {
		return uint32(sys.GPU(actual[user]).Props[topology.DRMRenderMinor])
	})
	if err != nil {
		return "", err
	}
	defer plan.close()
	if err := d.gemHandles(msg, plan.Plan); err != nil {
		return "", err
	}
	total, err := d.contents(ctx, layout, plan.Plan)
	if err != nil {
		return "", err
	}
	b, err := image.EncodeProcess(msg, d.schema)
	if err != nil {
		return "", err
	}
	if err := d.writeImage(image.Name{Kind: image.ProcessFile, ID: id}.String(), b); err != nil {
		return "", err
	}
	took := time.Since(began)
	return fmt.Sprintf("process %d: %d buffer objects, %s of VRAM and GTT written in %.2f s", msg.GetPid(),
		len(msg.Bos),
		humanize.IBytes(total), took.Seconds()), nil
}

// learn takes over the ids by which a process knows the GPUs, and corrects
// images of render nodes that were written before they were known.
func (d *dump) learn(actual map[uint32]uint32) error {
	for user, gpu := range actual {
		d.user[gpu] = user
	}
	for i, r := range d.renders {
		if user, ok := d.user[r.gpu]; ok && user != r.user {
			d.renders[i].user = user
			if err := d.writeRender(d.renders[i]); err != nil {
				return err
			}
		}
	}
	for _, f := range d.dmabufs {
		if f.gpu != 0 && f.msg.GetGpuId() != d.userID(f.gpu) {
			if err := d.writeDmabuf(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// contents writes the pages files, one for each GPU also where it is empty.
func (d *dump) contents(ctx context.Context, layout *image.Layout, plan vram.Plan) (total uint64, err error) {
	used := map[string]bool{}
	for _, bo := range plan.BOs {
		used[bo.File] = true
		total += bo.Size
	}
	for _, f := range layout.Files {
		if !used[f.Name] {
			if err := d.writeImage(f.Name, image.AppendHeader(nil, uint64(f.Size-image.HeaderSize))); err != nil {
				return 0, err
			}
		}
	}
	if len(plan.BOs) == 0 {
		return 0, nil
	}
	ctx, progress, stop := stalled(ctx, d.opts.Stall, nil, true)
	defer stop()
	opts := d.opts.VRAM
	opts.Progress = progress
	if _, err := vram.Read(ctx, plan, vram.DirSink(d.dir()), opts); err != nil {
		return 0, because(ctx, err)
	}
	return total, nil
}

// because adds why a context ended, where an error does not say.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w (%w)", err, cause)
	}
	return err
}

// decodeBuckets takes the driver's buckets out of shared memory.
func decodeBuckets(k *kfdDump) ([]abi.KFDCRIUDeviceBucket, []abi.KFDCRIUBoBucket, []byte, error) {
	devices := make([]abi.KFDCRIUDeviceBucket, k.msg.NumDevices)
	bos := make([]abi.KFDCRIUBoBucket, k.msg.NumBOs)
	db, err := k.mem.slice(k.msg.Devices, uint64(len(devices))*deviceBucket)
	if err != nil {
		return nil, nil, nil, err
	}
	bb, err := k.mem.slice(k.msg.BOs, uint64(len(bos))*boBucket)
	if err != nil {
		return nil, nil, nil, err
	}
	priv, err := k.mem.slice(k.msg.Priv, k.msg.PrivSize)
	if err != nil {
		return nil, nil, nil, err
	}
	return devices, bos, priv, errors.Join(abi.Decode(db, devices), abi.Decode(bb, bos))
}

// Sizes of the driver's buckets in bytes.
const (
	deviceBucket = 16
	boBucket     = 48
)
