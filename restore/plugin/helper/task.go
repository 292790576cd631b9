package helper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/gpucr/gpucr-fs/kfd"
	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/restore/plugin/wire"
	"github.com/gpucr/gpucr-fs/restore/touch"
	"github.com/gpucr/gpucr-fs/restore/vram"
)

// serveTask answers one task's hook, until it closes the connection.
func (r *restore) serveTask(c *wire.Conn) error {
	for {
		m, files, err := c.Receive()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := r.fromTask(c, m, files); err != nil {
			return err
		}
	}
}

// fromTask answers one message.
func (r *restore) fromTask(c *wire.Conn, m *wire.Message, files []*os.File) error {
	if m.Type == wire.Objects && len(files) == 1 && r.err == nil {
		return r.opened(c, int(m.ID), files[0])
	}
	closeAll(files)
	switch {
	case m.Type == wire.File:
		return r.file(c, m)
	case m.Type == wire.Mapping && r.err != nil:
		return answer(c, wire.OK, "", r.err)
	case m.Type == wire.Mapping:
		return r.mapping(c, m)
	case m.Type == wire.Node:
		return r.node(c, m.Minor)
	}
	return fmt.Errorf("message %d of a task: %w", m.Type, wire.ErrProtocol)
}

// processOf gives the image of CRIU's file of that id, if it is a KFD's.
func (r *restore) processOf(id int) *image.Process {
	i := slices.IndexFunc(r.set.Processes, func(p image.Process) bool { return p.ID == id })
	if i < 0 {
		return nil
	}
	return &r.set.Processes[i]
}

// node sends an open render node.
func (r *restore) node(c *wire.Conn, minor uint32) error {
	f, err := os.OpenFile(nodePath(minor), os.O_RDWR, 0)
	if err != nil {
		return answer(c, wire.OK, "", err)
	}
	defer f.Close()
	return c.Send(&wire.Message{Type: wire.OK}, f)
}

// file answers what a file of CRIU's is.
func (r *restore) file(c *wire.Conn, m *wire.Message) error {
	if r.err != nil {
		return answer(c, wire.OK, "", r.err)
	}
	if m.NumDevices > wire.MaxGPUs {
		return wire.ErrProtocol
	}
	id, visible := int(m.ID), m.GPUs[:m.NumDevices]
	if i := slices.IndexFunc(r.set.RenderNodes, func(n image.RenderNode) bool { return n.ID == id }); i >= 0 {
		n := r.set.RenderNodes[i]
		minor, err := r.renderMinor(n.Message.GetGpuId(), n.Name, visible)
		if err != nil {
			return answer(c, wire.OK, "", err)
		}
		return c.Send(&wire.Message{Type: wire.Render, Minor: minor, Count: uint32(len(n.Message.Bos))})
	}
	if i := slices.IndexFunc(r.set.Dmabufs, func(d image.Dmabuf) bool { return d.ID == id }); i >= 0 {
		return r.dmabuf(c, r.set.Dmabufs[i], m.PID, visible)
	}
	return answer(c, wire.OK, "", errNoFile)
}

// renderMinor is this machine's render node in place of a dumped one.
func (r *restore) renderMinor(gpu uint32, name string, visible []uint32) (uint32, error) {
	check := r.check(visible)
	for _, p := range check.Processes {
		for _, g := range p.GPUs {
			if g.Src == gpu {
				return g.RenderMinor, nil
			}
		}
	}
	return 0, fmt.Errorf("%s: GPU %#x maps to none of this machine: %s", name, gpu, problems(check))
}

// lazyBOs is which BOs may be filled when the process runs; nil for none.
func (r *restore) lazyBOs(p image.Process) []bool {
	if !r.opts.Lazy {
		return nil
	}
	return lazyBOs(p, r.objects.shared(p))
}

// gpus is how the GPUs of a process map to this machine's.
func (r *restore) gpus(p image.Process, visible []uint32) ([]kfd.GPUPair, error) {
	check := r.check(visible)
	for _, pr := range check.Processes {
		if pr.Image == p.Name && pr.OK && len(check.Problems) == 0 {
			return pr.GPUs, nil
		}
	}
	return nil, errors.New(problems(check))
}

// problems tells in one line why a checkpoint does not fit.
func problems(check *kfd.Report) string {
	lines := check.Lines()
	for i, l := range lines {
		lines[i] = strings.TrimSpace(l)
	}
	return strings.Join(lines, "; ")
}

// fillPart fills a plan when it is its turn.
func (r *restore) fillPart(ctx context.Context, plan vram.Plan, turn <-chan struct{}) (vram.Report, error) {
	if len(plan.BOs) == 0 {
		return vram.Report{}, nil
	}
	ctx, progress, stop := stalled(ctx, r.opts.Stall, turn, false)
	defer stop()
	opts := r.fillOptions()
	opts.Progress = progress
	rep, err := r.filler(ctx, plan, opts, turn)
	if err != nil {
		return rep, because(ctx, err)
	}
	return rep, nil
}

// fillOptions are those of a fill of one process.
func (r *restore) fillOptions() vram.Options {
	opts := r.opts.VRAM
	// Fills under way at once share the bound.
	if opts.Staging == 0 {
		opts.Staging = vram.DefaultStaging
	}
	if opts.MaxBuffer > 0 {
		opts.Staging = min(opts.Staging, max(opts.MaxBuffer, vram.MinStaging))
	}
	opts.Staging = max(opts.Staging/int64(min(len(r.set.Processes), maxFills)), vram.MinStaging)
	return opts
}

// pair returns the partner of a GPU; there is one for each in a mapping.
func pair(gpus []kfd.GPUPair, gpu uint32) kfd.GPUPair {
	i := slices.IndexFunc(gpus, func(g kfd.GPUPair) bool { return g.Src == gpu })
	if i < 0 {
		return kfd.GPUPair{}
	}
	return gpus[i]
}

// restoreBuffers makes the buffers of a RESTORE ioctl, in shared memory, and the
// message that tells where they lie. In place of a descriptor of the render node
// a device has the minor to open.
func restoreBuffers(p image.Process, gpus []kfd.GPUPair) (*shared, *wire.Message, error) {
	var devices []abi.KFDCRIUDeviceBucket
	minor := map[uint32]uint32{}
	for _, d := range p.Message.Devices {
		if d.GetGpuId() == 0 {
			continue
		}
		g := pair(gpus, d.GetGpuId())
		devices = append(devices, abi.KFDCRIUDeviceBucket{UserGPUID: g.Src, ActualGPUID: g.Dst, DRMFD: g.RenderMinor})
		minor[g.Src] = d.GetDrmRenderMinor()
	}
	bos := make([]abi.KFDCRIUBoBucket, len(p.Message.Bos))
	var ranges []wire.Range
	for i, b := range p.Message.Bos {
		bos[i] = abi.KFDCRIUBoBucket{
			Addr: b.GetAddr(), Size: b.GetSize(), Offset: b.GetOffset(), GPUID: b.GetGpuId(),
			AllocFlags: b.GetAllocFlags(), DmabufFD: abi.KFDInvalidFD,
		}
		moved := wire.Range{Offset: b.GetOffset(), Size: b.GetSize(), BO: uint32(i)}
		switch p.Layout.BOs[i].Kind {
		case image.VRAM, image.GTT:
			moved.Minor = minor[b.GetGpuId()]
		case image.Doorbell, image.MMIO:
		default:
			continue
		}
		ranges = append(ranges, moved)
	}
	slices.SortFunc(ranges, func(a, b wire.Range) int {
		switch {
		case a.Minor != b.Minor:
			return int(a.Minor) - int(b.Minor)
		case a.Offset < b.Offset:
			return -1
		case a.Offset > b.Offset:
			return 1
		}
		return int(a.BO) - int(b.BO)
	})
	priv := p.Message.PrivData
	m := &wire.Message{
		Type: wire.KFD, PID: p.Message.GetPid(), NumDevices: uint32(len(devices)), NumBOs: uint32(len(bos)),
		NumObjects: p.Message.GetNumOfObjects(), NumRanges: uint32(len(ranges)), PrivSize: uint64(len(priv)),
	}
	m.BOs = m.Devices + deviceBucket*uint64(len(devices))
	m.Priv = m.BOs + boBucket*uint64(len(bos))
	m.Ranges = (m.Priv + m.PrivSize + 7) &^ 7
	m.Size = m.Ranges + wire.RangeSize*uint64(len(ranges))
	mem, err := newShared(max(m.Size, 8))
	if err != nil {
		return nil, nil, err
	}
	err = errors.Join(abi.Encode(mem.mem[m.Devices:m.BOs], devices), abi.Encode(mem.mem[m.BOs:m.Priv], bos),
		abi.Encode(mem.mem[m.Ranges:], ranges))
	copy(mem.mem[m.Priv:], priv)
	if err != nil {
		mem.close()
		return nil, nil, err
	}
	return mem, m, nil
}

const pageSize = 4096

// hostMemory returns what the GPUs of a process use of its own memory: userptr
// buffer objects and ranges of shared virtual memory. Private data that is not
// understood tells nothing; the driver will have its say.
func hostMemory(p image.Process) []touch.Span {
	priv, err := p.PrivData()
	if err != nil {
		return nil
	}
	var out []touch.Span
	for i, bo := range p.Layout.BOs {
		if bo.Kind == image.Userptr {
			start := priv.BOs[i].UserAddr &^ (pageSize - 1)
			out = append(out, touch.Span{Start: start, End: start + uint64(bo.Size)})
		}
	}
	for _, r := range priv.Ranges {
		// The driver counts these in pages.
		out = append(out, touch.Span{Start: r.StartAddr * pageSize, End: (r.StartAddr + r.Size) * pageSize})
	}
	return out
}
