package helper

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
	"github.com/gpucr/gpucr-fs/kfd/topology"
	"github.com/gpucr/gpucr-fs/restore/plugin/wire"
	"github.com/gpucr/gpucr-fs/restore/vram"
)

// Buffer objects of render nodes, of which the driver's CHECKPOINT does not tell:
// made there, or imported as a dma-buf, from a process's KFD or another render node.
// Each open's handles are listed and exported; dma-bufs of one inode are one object,
// in all processes. The first image that describes it has its contents, too.

// renderObjects describes the objects of a render node and writes the contents of
// those that no image has yet.
func (d *dump) renderObjects(ctx context.Context, node *os.File, id, minor, gpu uint32) ([]*imagepb.RenderBO, error) {
	list, told, err := handles(node)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	if !told {
		return nil, fmt.Errorf("it has %d buffer objects that are not the KFD's, the first handle %d of %s, "+
			"of which this kernel does not tell enough (hint: Linux 6.18 does)",
			len(list), list[0].GEMHandle, humanize.IBytes(list[0].Size))
	}
	dmabufs, err := d.exports(list)
	defer closeAll(dmabufs)
	if err != nil {
		return nil, err
	}
	var bos []*imagepb.RenderBO
	var plan vram.Plan
	for i, e := range list {
		bo, err := renderObject(node, e)
		if err == nil {
			*bo.Object, err = inode(dmabufs[i])
		}
		if err != nil {
			return nil, fmt.Errorf("handle %d: %w", e.GEMHandle, err)
		}
		if _, ok := d.known[bo.GetObject()]; ok {
			bo.IsImport = proto.Uint32(1)
		} else {
			d.known[bo.GetObject()] = e.GEMHandle
			d.kept, dmabufs[i] = append(d.kept, dmabufs[i]), nil
			name := image.Name{Kind: image.RenderPagesFile, ID: int(id), Minor: int(minor), Index: i}
			plan.BOs = append(plan.BOs, contentsOf(bo, gpu, i, d.kept[len(d.kept)-1], name))
		}
		bos = append(bos, bo)
	}
	return bos, d.objectContents(ctx, plan, minor)
}

// contentsOf is the place of an object's contents.
func contentsOf(bo *imagepb.RenderBO, gpu uint32, index int, dmabuf *os.File, name image.Name) vram.BO {
	kind := "gtt"
	if bo.GetPreferredDomains()&abi.AMDGPUDomainVRAM != 0 {
		kind = "vram"
	}
	return vram.BO{GPU: gpu, Index: index, Kind: kind, VA: bo.GetAddr(), Size: bo.GetSize(), Dmabuf: dmabuf,
		File: name.String(), Off: image.HeaderSize}
}

// objectContents writes objects of one render node.
func (d *dump) objectContents(ctx context.Context, plan vram.Plan, minor uint32) error {
	if len(plan.BOs) == 0 {
		return nil
	}
	f, err := os.OpenFile(nodePath(minor), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	plan.Nodes = []vram.Node{{File: f, Name: fmt.Sprintf("renderD%d", minor)}}
	ctx, progress, stop := stalled(ctx, d.opts.Stall, nil, true)
	defer stop()
	opts := d.opts.VRAM
	opts.Progress = progress
	if _, err := vram.Read(ctx, plan, vram.DirSink(d.dir()), opts); err != nil {
		return because(ctx, err)
	}
	return nil
}

// renderObject describes an object of a render node.
func renderObject(node *os.File, e abi.AMDGPUGEMListHandlesEntry) (*imagepb.RenderBO, error) {
	if e.PreferredDomains&^uint64(abi.AMDGPUDomainCPU|abi.AMDGPUDomainGTT|abi.AMDGPUDomainVRAM) != 0 {
		return nil, fmt.Errorf("%s in domains %#x cannot be restored", humanize.IBytes(e.Size), e.PreferredDomains)
	}
	maps, err := mappings(node, e.GEMHandle)
	if err != nil {
		return nil, err
	}
	offset, err := gemOffset(node, e.GEMHandle)
	if err != nil {
		return nil, err
	}
	bo := &imagepb.RenderBO{
		Addr: proto.Uint64(0), Size: proto.Uint64(e.Size), Offset: proto.Uint64(offset),
		AllocFlags: proto.Uint64(e.AllocFlags), Alignment: proto.Uint64(e.Alignment),
		PreferredDomains: proto.Uint32(uint32(e.PreferredDomains)), Handle: proto.Uint32(e.GEMHandle),
		IsImport: proto.Uint32(0), NumOfVms: proto.Uint32(uint32(len(maps))), Object: proto.Uint64(0),
	}
	for _, m := range maps {
		*bo.Addr = m.Addr
		bo.Mappings = append(bo.Mappings, &imagepb.Mapping{Addr: proto.Uint64(m.Addr), Size: proto.Uint64(m.Size),
			Offset: proto.Uint64(m.Offset), Flags: proto.Uint64(m.Flags)})
	}
	return bo, nil
}

// exports has CRIU export all objects of the render node that it asked about: a
// request that returns descriptors is CRIU's to issue.
func (d *dump) exports(list []abi.AMDGPUGEMListHandlesEntry) ([]*os.File, error) {
	numbers := make([]uint32, len(list))
	for i, e := range list {
		numbers[i] = e.GEMHandle
	}
	dmabufs, err := exports(d.control, nil, numbers)
	var refused *exportError
	if errors.As(err, &refused) && (refused.errno == unix.EAGAIN || refused.errno == unix.EINTR) {
		err = fmt.Errorf("buffer object of handle %d: the driver puts its export off for ever "+
			"(hint: does it say more in dmesg?): %w", list[refused.index].GEMHandle, refused.errno)
	} else if errors.As(err, &refused) {
		e := list[refused.index]
		err = fmt.Errorf("buffer object of handle %d, %s, cannot be restored: the driver does not export it; "+
			"it may be memory of the process itself, or always valid: %w",
			e.GEMHandle, humanize.IBytes(e.Size), refused.errno)
	}
	return dmabufs, err
}

// exportError is the driver's refusal to export an object.
type exportError struct {
	index int
	errno unix.Errno
}

func (e *exportError) Error() string { return fmt.Sprintf("export of object %d: %v", e.index, e.errno) }

// exports asks the other end of a connection for the dma-bufs of handles of a render
// node: of node, or without one of that which the other end knows.
func exports(c *wire.Conn, node *os.File, numbers []uint32) ([]*os.File, error) {
	dmabufs := make([]*os.File, len(numbers))
	for at := 0; at < len(numbers); {
		m := &wire.Message{Type: wire.Export, First: uint32(at), Count: uint32(min(len(numbers)-at, wire.MaxGPUs))}
		copy(m.GPUs[:], numbers[at:at+int(m.Count)])
		var with []*os.File
		if node != nil {
			with = append(with, node)
		}
		if err := c.Send(m, with...); err != nil {
			return dmabufs, err
		}
		got, files, err := c.Receive()
		if err != nil {
			return dmabufs, err
		}
		if got.Type != wire.BOs || got.First != m.First || got.Count > m.Count || !place(dmabufs, got, files) {
			closeAll(files)
			return dmabufs, wire.ErrProtocol
		}
		if at += int(got.Count); got.Status != 0 || got.Count < m.Count {
			return dmabufs, &exportError{at, unix.Errno(-got.Status)}
		}
	}
	return dmabufs, nil
}

// dmabufFile is an image of a dma-buf as it was written.
type dmabufFile struct {
	id  uint32
	gpu uint32 // of this machine; 0: the GPU of the object's holder
	msg *imagepb.Dmabuf
}

// dmabuf writes the image of an open dma-buf: which object it is, and if no image has
// that, all of it.
func (d *dump) dmabuf(ctx context.Context, id uint32, f *os.File) (taken bool, err error) {
	if d.opts.Refuse != nil {
		return false, d.opts.Refuse
	}
	object, err := inode(f)
	if err != nil {
		return false, err
	}
	out := dmabufFile{id: id, msg: &imagepb.Dmabuf{Object: proto.Uint64(object)}}
	if handle, ok := d.known[object]; ok {
		out.msg.GemHandle = proto.Uint32(handle)
	} else if out.gpu, err = d.unknown(ctx, id, f, out.msg); err != nil {
		return false, err
	}
	d.dmabufs = append(d.dmabufs, out)
	if err := d.writeDmabuf(out); err != nil || ok(d.known, object) {
		return false, err
	}
	d.known[object], d.kept = out.msg.GetGemHandle(), append(d.kept, f)
	return true, nil
}

func ok(known map[uint64]uint32, object uint64) bool { _, ok := known[object]; return ok }

func (d *dump) writeDmabuf(f dmabufFile) error {
	if f.gpu != 0 {
		f.msg.GpuId = proto.Uint32(d.userID(f.gpu))
	}
	b, err := image.EncodeDmabuf(f.msg)
	if err != nil {
		return err
	}
	return d.writeImage(image.Name{Kind: image.DmabufFile, ID: int(f.id)}.String(), b)
}

// userID is a GPU's id as processes know it, as far as they have told.
func (d *dump) userID(gpu uint32) uint32 {
	if user, ok := d.user[gpu]; ok {
		return user
	}
	return gpu
}

// unknown describes an object that a dma-buf alone is known to hold, and gives its
// GPU. It is of the render node for which it is no import.
func (d *dump) unknown(ctx context.Context, id uint32, f *os.File, msg *imagepb.Dmabuf) (uint32, error) {
	sys, err := d.hostTopology()
	if err != nil {
		return 0, err
	}
	for _, g := range sys.GPUs() {
		minor := uint32(g.Props[topology.DRMRenderMinor])
		node, err := d.ownNode(fmt.Sprintf("renderD%d", minor))
		if err != nil {
			return 0, err
		}
		handle, err := gemImport(node, f)
		if err != nil {
			continue // another GPU's, or driver's
		}
		list, told, err := handles(node)
		if err != nil {
			return 0, err
		}
		for _, e := range list {
			if e.GEMHandle != handle || e.Flags&abi.AMDGPUGEMListIsImport != 0 {
				continue
			}
			if !told {
				return 0, fmt.Errorf("dma-buf of %s, of which this kernel does not tell enough (hint: Linux 6.18 does)",
					humanize.IBytes(e.Size))
			}
			bo, err := renderObject(node, e)
			if err != nil {
				return 0, fmt.Errorf("dma-buf of renderD%d: %w", minor, err)
			}
			msg.GemHandle, msg.DrmRenderMinor, msg.Bo = proto.Uint32(handle), proto.Uint32(minor), bo
			bo.Object = msg.Object
			name := image.Name{Kind: image.RenderPagesFile, ID: int(id), Minor: int(minor)}
			plan := vram.Plan{BOs: []vram.BO{contentsOf(bo, g.GPUID, 0, f, name)}}
			return g.GPUID, d.objectContents(ctx, plan, minor)
		}
		if err := gemClose(node, handle); err != nil {
			return 0, err
		}
	}
	return 0, errNotOurs
}
