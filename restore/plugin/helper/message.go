package helper

import (
	"cmp"
	"fmt"
	"os"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
	"github.com/gpucr/gpucr-fs/kfd/topology"
	"github.com/gpucr/gpucr-fs/restore/vram"
)

// processMessage makes the image of a process from what the driver returned.
// actual gives this machine's id for each GPU id that the process knows.
func processMessage(k *kfdDump, sys *topology.System) (msg *imagepb.Process, actual map[uint32]uint32, err error) {
	devices, bos, priv, err := decodeBuckets(k)
	if err != nil {
		return nil, nil, err
	}
	actual = map[uint32]uint32{}
	user := map[uint32]uint32{}
	for _, d := range devices {
		if sys.GPU(d.ActualGPUID) == nil {
			return nil, nil, fmt.Errorf("process %d uses GPU %#x, which the topology does not show "+
				"(hint: is a device hidden from criu?)", k.msg.PID, d.ActualGPUID)
		}
		actual[d.UserGPUID], user[d.ActualGPUID] = d.ActualGPUID, d.UserGPUID
	}
	msg = &imagepb.Process{
		Pid: proto.Uint32(k.msg.PID), NumOfGpus: proto.Uint32(k.msg.NumDevices),
		NumOfObjects: proto.Uint32(k.msg.NumObjects),
		NumOfBos:     proto.Uint64(uint64(len(bos))), PrivData: slices.Clone(priv),
	}
	size, magic, err := thunkMemory()
	if err != nil {
		return nil, nil, err
	}
	msg.SharedMemSize, msg.SharedMemMagic = proto.Uint64(size), proto.Uint32(magic)
	cpus := uint32(0)
	// A GPU that the process does not use is no part of it, nor links to it.
	member := func(n *topology.Node) bool { return !n.IsGPU() || user[n.GPUID] != 0 }
	// In the order of CRIU's plugin, which would swap equal GPUs otherwise.
	listed := slices.SortedStableFunc(slices.Values(sys.Nodes),
		func(a, b *topology.Node) int { return cmp.Compare(a.Listed, b.Listed) })
	for _, n := range listed {
		if !member(n) {
			continue
		}
		d := deviceMessage(n, user[n.GPUID])
		for _, l := range n.Links {
			if i := slices.IndexFunc(sys.Nodes, func(to *topology.Node) bool { return to.ID == l.To }); i >= 0 &&
				member(sys.Nodes[i]) {
				d.Links = append(d.Links,
					&imagepb.Link{Type: proto.Uint32(uint32(l.Type)), NodeToId: proto.Uint32(l.To)})
			}
		}
		msg.Devices = append(msg.Devices, d)
		if !n.IsGPU() {
			cpus++
		}
	}
	msg.NumOfCpus = proto.Uint32(cpus)
	for _, b := range bos {
		msg.Bos = append(msg.Bos, &imagepb.BO{
			Addr: proto.Uint64(b.Addr), Size: proto.Uint64(b.Size), Offset: proto.Uint64(b.Offset),
			AllocFlags: proto.Uint32(b.AllocFlags), GpuId: proto.Uint32(b.GPUID),
		})
	}
	return msg, actual, nil
}

// deviceMessage is one node of the topology. Fields that are no property are 0:
// the format requires all.
func deviceMessage(n *topology.Node, gpu uint32) *imagepb.Device {
	d := &imagepb.Device{}
	m := d.ProtoReflect()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		switch fd := fields.Get(i); {
		case fd.IsList():
		case fd.Kind() == protoreflect.Uint64Kind:
			m.Set(fd, protoreflect.ValueOfUint64(0))
		default:
			m.Set(fd, protoreflect.ValueOfUint32(0))
		}
	}
	for prop := range topology.NumProperties {
		if n.IsGPU() == (prop == topology.CPUCoresCount) {
			continue // of a CPU its cores alone, of a GPU all the rest
		}
		fd := fields.ByName(protoreflect.Name(prop.String()))
		if fd.Kind() == protoreflect.Uint64Kind {
			m.Set(fd, protoreflect.ValueOfUint64(n.Props[prop]))
		} else {
			m.Set(fd, protoreflect.ValueOfUint32(uint32(n.Props[prop])))
		}
	}
	d.NodeId, d.GpuId = proto.Uint32(n.ID), proto.Uint32(gpu)
	return d
}

// plan is a vram.Plan whose render nodes are this one's.
type plan struct{ vram.Plan }

func (p plan) close() {
	for _, n := range p.Nodes {
		n.File.Close()
	}
}

func noHandle(bo vram.BO) error {
	return fmt.Errorf("%s buffer object %d of process %d on gpu %#x: the driver gave no handle to its memory", bo.Kind,
		bo.Index, bo.PID, bo.GPU)
}

// makePlan joins the BOs that have contents with their dma-bufs. minor gives the
// render node, on this machine, of a GPU that the process knows. No dma-bufs at all
// make a plan for what is to come.
func makePlan(msg *imagepb.Process, layout *image.Layout, dmabufs []*os.File, minor func(gpu uint32) uint32) (_ plan,
	err error) {
	var p plan
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	nodes := map[uint32]int{}
	for i, bo := range layout.BOs {
		if bo.File == "" {
			continue
		}
		var dmabuf *os.File
		if dmabufs != nil {
			dmabuf = dmabufs[i]
		}
		if dmabufs != nil && dmabuf == nil {
			return p, noHandle(vram.BO{Kind: bo.Kind.String(), Index: i, PID: int(msg.GetPid()), GPU: bo.GPUID})
		}
		at, ok := nodes[bo.GPUID]
		if !ok {
			n := minor(bo.GPUID)
			f, err := os.OpenFile(nodePath(n), os.O_RDWR, 0)
			if err != nil {
				return p, err
			}
			at = len(p.Nodes)
			nodes[bo.GPUID] = at
			p.Nodes = append(p.Nodes, vram.Node{File: f, Name: fmt.Sprintf("renderD%d", n)})
		}
		p.BOs = append(p.BOs, vram.BO{
			PID: int(msg.GetPid()), GPU: bo.GPUID, Index: i, Kind: bo.Kind.String(), VA: bo.Addr, Size: uint64(bo.Size),
			Node: at, Dmabuf: dmabuf, File: bo.File, Off: bo.Offset,
		})
	}
	return p, nil
}
