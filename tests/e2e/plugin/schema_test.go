package plugin

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gpucr/gpucr-fs/kfd"
	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/kfd/topology"
)

// set reads the images and holds the files of contents against them.
func (b *bench) set() *image.Set {
	b.T.Helper()
	s, err := image.Read(os.DirFS(b.images))
	if err != nil {
		b.T.Fatal(err)
	}
	if err := s.Verify(os.DirFS(b.images)); err != nil {
		b.T.Fatal(err)
	}
	return s
}

// allSet fails the test for every field of a message that is not in it: CRIU's
// plugin requires all that it knows.
func allSet(t *testing.T, what string, m protoreflect.Message, but ...protoreflect.Name) {
	t.Helper()
	if len(m.GetUnknown()) > 0 {
		t.Errorf("%s: %d bytes of unknown fields", what, len(m.GetUnknown()))
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if want := !slices.Contains(but, fd.Name()); !fd.IsList() && m.Has(fd) != want {
			t.Errorf("%s: has field %s: %v", what, fd.Name(), !want)
		}
	}
}

// Every field of the images, held against what the simulator knows.
func TestImages(t *testing.T) {
	for _, schema := range []image.Schema{image.Schema42, image.SchemaLater} {
		t.Run(schema.String(), func(t *testing.T) { testImages(t, schema) })
	}
}

func testImages(t *testing.T, schema image.Schema) {
	b := newBench(t, kfdsim.Options{CPUNodes: 2,
		GPUs: []kfdsim.GPU{{ID: 7001, Hive: 9}, {ID: 7002, Hive: 9, NUMANode: 1}}})
	var nodeFields, boFields []protoreflect.Name // that 4.2 does not have
	if schema == image.Schema42 {
		nodeFields, boFields = []protoreflect.Name{"id", "drm_render_minor", "num_of_bos"},
			[]protoreflect.Name{"handle"}
	} else {
		b.env = []string{"GPUCR_SCHEMA=" + schema.String()}
	}
	app := b.StartApp(2, "--interval", "1", "--max-bo", "131072")
	// Dumped once with the application left alone, so that the simulator can be
	// asked; it then stands.
	if err := b.criu("dump", "--leave-stopped", "-t", fmt.Sprint(app.PID)); err != nil {
		t.Fatal(err)
	}
	s := b.set()
	if s.Schema != schema || len(s.Processes) != 2 || len(s.RenderNodes) != 4 || len(s.Dmabufs) != 0 {
		t.Fatalf("schema %v, %d processes, %d render nodes, %d dma-bufs", s.Schema, len(s.Processes),
			len(s.RenderNodes), len(s.Dmabufs))
	}
	host, err := topology.Parse(os.DirFS(b.Sim.SysDir()))
	if err != nil {
		t.Fatal(err)
	}
	bos := map[int][]kfdsim.BOInfo{}
	for _, bo := range b.Sim.BOs(true) {
		bos[bo.PID] = append(bos[bo.PID], bo)
	}
	for _, p := range s.Processes {
		b.checkProcess(p, host, bos[int(p.Message.GetPid())], boFields)
	}
	ids := map[uint32]int{}
	for _, n := range s.RenderNodes {
		allSet(t, n.Name, n.Message.ProtoReflect(), nodeFields...)
		if m := n.Message; schema == image.SchemaLater &&
			(int(m.GetId()) != n.ID || m.GetNumOfBos() != 0 || b.minor(m.GetGpuId()) != m.GetDrmRenderMinor()) {
			t.Errorf("%s: %v", n.Name, m)
		}
		ids[n.Message.GetGpuId()]++
	}
	if ids[7001] != 2 || ids[7002] != 2 {
		t.Errorf("render nodes by gpu: %v", ids)
	}
	app.Kill()
	app.WaitGone()
	// Either is restored.
	b.restore()
	app.WaitRounds(1)
	app.Kill()
}

// minor is a GPU's render node.
func (b *bench) minor(gpu uint32) uint32 {
	for _, g := range b.Sim.Options().GPUs {
		if g.ID == gpu {
			return uint32(g.RenderMinor)
		}
	}
	return 0
}

func (b *bench) checkProcess(p image.Process, host *topology.System, bos []kfdsim.BOInfo, without []protoreflect.Name) {
	t := b.T.(*testing.T)
	t.Helper()
	m := p.Message
	allSet(t, p.Name, m.ProtoReflect())
	if m.GetNumOfGpus() != 2 || m.GetNumOfCpus() != 2 || m.GetSharedMemSize() != 0 || int(m.GetNumOfBos()) != len(bos) {
		t.Errorf("%s: %d gpus, %d cpus, shared memory of %d, %d bos of %d", p.Name, m.GetNumOfGpus(), m.GetNumOfCpus(),
			m.GetSharedMemSize(), m.GetNumOfBos(), len(bos))
	}
	for _, d := range m.Devices {
		allSet(t, fmt.Sprintf("%s: device %d", p.Name, d.GetNodeId()), d.ProtoReflect())
		for _, l := range d.Links {
			allSet(t, "link", l.ProtoReflect())
		}
	}
	// What the image says of the machine is the machine, listed as CRIU's plugin lists
	// it.
	got := kfd.Topology(m)
	for i, name := range b.listed() {
		id, err := strconv.Atoi(name)
		if err != nil {
			t.Fatal(err)
		}
		n := host.Nodes[id]
		if g := got.Nodes[i]; g.ID != n.ID || g.GPUID != n.GPUID || !slices.Equal(g.Links, n.Links) || n.IsGPU() &&
			!sameProperties(g, n) {
			t.Errorf("%s: node\n%+v, the host has\n%+v", p.Name, g, n)
		}
	}
	priv, err := p.PrivData()
	if err != nil {
		t.Fatal(err)
	}
	if len(priv.BOs) != len(bos) || len(priv.Queues) != 4 || priv.Objects() != m.GetNumOfObjects() {
		t.Errorf("%s: private data of %d bos, %d queues, %d objects of %d", p.Name, len(priv.BOs), len(priv.Queues),
			priv.Objects(), m.GetNumOfObjects())
	}
	for i, e := range m.Bos {
		allSet(t, fmt.Sprintf("%s: bo %d", p.Name, i), e.ProtoReflect(), without...)
		want := bos[i]
		if has := e.GetAllocFlags()&abi.KFDMemPaged != 0; e.Handle != nil &&
			(e.GetHandle() != abi.DRMInvalidHandle) != has {
			t.Errorf("%s: bo %d of flags %#x has handle %#x", p.Name, i, e.GetAllocFlags(), e.GetHandle())
		}
		if e.GetAddr() != want.VA || e.GetSize() != want.Size || e.GetOffset() != want.Offset ||
			e.GetAllocFlags() != want.Flags || e.GetGpuId() != want.UserID {
			t.Errorf("%s: bo %d is %v, the simulator has %+v", p.Name, i, e, want)
		}
	}
	b.checkPages(p, bos)
}

// listed are the topology's nodes as their directory lists them.
func (b *bench) listed() []string {
	b.T.Helper()
	dir, err := os.Open(filepath.Join(b.Sim.SysDir(), "class/kfd/kfd/topology/nodes"))
	if err != nil {
		b.T.Fatal(err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		b.T.Fatal(err)
	}
	return names
}

func sameProperties(a, b *topology.Node) bool {
	for prop := range topology.NumProperties {
		if prop != topology.CPUCoresCount && a.Props[prop] != b.Props[prop] {
			return false
		}
	}
	return true
}

// checkPages reads pages files as CRIU's plugin writes them: the size of all
// that follows, then each VRAM and GTT BO of the GPU, in order.
func (b *bench) checkPages(p image.Process, bos []kfdsim.BOInfo) {
	b.T.Helper()
	for _, gpu := range []uint32{7001, 7002} {
		name := fmt.Sprintf("amdgpu-pages-%d-%04x.img", p.ID, gpu)
		file, err := os.ReadFile(filepath.Join(b.images, name))
		if err != nil {
			b.T.Fatal(err)
		}
		if n := binary.NativeEndian.Uint64(file); n != uint64(len(file)-8) {
			b.T.Errorf("%s: header says %d of %d bytes", name, n, len(file)-8)
		}
		rest := bytes.NewBuffer(file[8:])
		for i, bo := range bos {
			if bo.UserID != gpu || bo.Flags&abi.KFDMemPaged == 0 {
				continue
			}
			if got := kfdsim.HashWords(0, rest.Next(int(bo.Size))); got != bo.Hash {
				b.T.Errorf("%s: bo %d of %d bytes has other contents", name, i, bo.Size)
			}
		}
		if rest.Len() != 0 {
			b.T.Errorf("%s: %d bytes behind the last bo", name, rest.Len())
		}
	}
}
