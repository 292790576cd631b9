// Package gpuimages makes the amdgpu images of a checkpoint, and the topology trees of hosts, on a machine without a
// GPU.
package gpuimages

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/kfd/topology"
)

// BO is a buffer object of a process to be made.
type BO struct {
	GPU   int    // its place among the GPUs of the host
	Flags uint32 // abi.KFDMem*
	Size  int64
	Seed  uint64 // of its contents; 0 for zeros
}

// Contents gives the bytes of a BO.
func (b BO) Contents() io.Reader {
	if b.Seed == 0 {
		return io.LimitReader(zeros{}, b.Size)
	}
	var seed [32]byte
	for i := range 8 {
		seed[i] = byte(b.Seed >> (8 * i))
	}
	return io.LimitReader(rand.NewChaCha8(seed), b.Size)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// Host writes the topology tree of a machine with these GPUs below dir, which stands for its root directory.
func Host(dir string, o kfdsim.Options) (*topology.System, error) {
	if err := kfdsim.WriteTopology(filepath.Join(dir, "sys"), o); err != nil {
		return nil, err
	}
	return topology.Parse(os.DirFS(dir))
}

// Process makes the image of a process that has all GPUs of a host open, these BOs, and an AQL queue on each GPU.
func Process(pid uint32, host *topology.System, bos []BO) *imagepb.Process {
	p := &imagepb.Process{Pid: &pid, NumOfBos: proto.Uint64(uint64(len(bos))), SharedMemSize: proto.Uint64(0),
		SharedMemMagic: proto.Uint32(0)}
	priv := image.PrivData{BOs: make([]abi.KFDPrivBO, len(bos))}
	gpus := uint32(0)
	for _, n := range host.Nodes {
		p.Devices = append(p.Devices, device(n))
		if n.IsGPU() {
			gpus++
			priv.Devices = append(priv.Devices, abi.KFDPrivDevice{})
			priv.Queues = append(priv.Queues, image.PrivQueue{KFDPrivQueue: abi.KFDPrivQueue{
				ObjectType: abi.KFDPrivObjectQueue, QSize: 4096, GPUID: n.GPUID, Format: abi.KFDPrivQueueFormatAQL,
				QID: gpus - 1, Priority: 7}})
		}
	}
	p.NumOfGpus, p.NumOfCpus = &gpus, proto.Uint32(uint32(len(host.Nodes))-gpus)
	addr := uint64(0x7f0000000000)
	for i, b := range bos {
		p.Bos = append(p.Bos,
			&imagepb.BO{Addr: proto.Uint64(addr), Size: proto.Uint64(uint64(b.Size)), Offset: proto.Uint64(0),
				AllocFlags: &bos[i].Flags, GpuId: &host.GPUs()[b.GPU].GPUID, Handle: proto.Uint32(uint32(i + 1))})
		addr += uint64(b.Size)
	}
	p.NumOfObjects = proto.Uint32(priv.Objects())
	p.PrivData = priv.Append(nil)
	return p
}

// device is the reverse of kfd.Topology.
func device(n *topology.Node) *imagepb.Device {
	d := &imagepb.Device{NodeId: &n.ID, GpuId: &n.GPUID, GdsSizeInKb: proto.Uint32(0)}
	m := d.ProtoReflect()
	for prop := range topology.NumProperties {
		fd := m.Descriptor().Fields().ByName(protoreflect.Name(prop.String()))
		v := protoreflect.ValueOfUint64(n.Props[prop])
		if fd.Kind() == protoreflect.Uint32Kind {
			v = protoreflect.ValueOfUint32(uint32(n.Props[prop]))
		}
		m.Set(fd, v)
	}
	for _, l := range n.Links {
		d.Links = append(d.Links, &imagepb.Link{Type: proto.Uint32(uint32(l.Type)), NodeToId: proto.Uint32(l.To)})
	}
	return d
}

// File is an image, to be read once.
type File struct {
	Name string
	Size int64
	Body io.Reader
}

// Files gives the images of one process, id being CRIU's of the open file: first those of the BOs' contents, then the
// one that says where in them each lies.
func Files(id int, p *imagepb.Process, bos []BO) ([]File, error) {
	l, err := image.ProcessLayout(id, p)
	if err != nil {
		return nil, err
	}
	var out []File
	for _, f := range l.Files {
		parts := []io.Reader{bytes.NewReader(image.AppendHeader(nil, uint64(f.Size-image.HeaderSize)))}
		for _, bo := range l.BOs {
			if bo.File == f.Name {
				parts = append(parts, bos[bo.Index].Contents())
			}
		}
		out = append(out, File{f.Name, f.Size, io.MultiReader(parts...)})
	}
	b, err := image.EncodeProcess(p, image.SchemaLater)
	if err != nil {
		return nil, err
	}
	return append(out, File{image.Name{Kind: image.ProcessFile, ID: id}.String(), int64(len(b)), bytes.NewReader(b)}),
		nil
}

// Write writes the images of one process into a directory.
func Write(dir string, id int, p *imagepb.Process, bos []BO) error {
	files, err := Files(id, p, bos)
	if err != nil {
		return err
	}
	for _, f := range files {
		out, err := os.Create(filepath.Join(dir, f.Name))
		if err != nil {
			return err
		}
		n, err := io.Copy(out, f.Body)
		if err := errors.Join(err, out.Close()); err != nil {
			return err
		}
		if n != f.Size {
			return fmt.Errorf("gpuimages: %s has %d bytes, not %d", f.Name, n, f.Size)
		}
	}
	return nil
}
