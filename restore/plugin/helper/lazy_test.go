package helper

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
	"github.com/gpucr/gpucr-fs/restore/vram"
)

// planOf is a plan with so many bytes on each render node.
func planOf(bytes map[string]uint64) (p vram.Plan) {
	for name, n := range bytes {
		p.BOs = append(p.BOs, vram.BO{Node: len(p.Nodes), Size: n})
		p.Nodes = append(p.Nodes, vram.Node{Name: name})
	}
	return p
}

func begun(t *turn) bool {
	select {
	case <-t.begin:
		return true
	default:
		return false
	}
}

func TestTurns(t *testing.T) {
	const large = 1 << 30
	var s turns
	first := s.newTurn(planOf(map[string]uint64{"a": large}), true)
	idle := s.newTurn(planOf(map[string]uint64{"a": large, "b": large}), true)
	busy := s.newTurn(planOf(map[string]uint64{"a": large}), false)
	elsewhere := s.newTurn(planOf(map[string]uint64{"c": large}), true)
	behind := s.newTurn(planOf(map[string]uint64{"b": large}), true)
	if !begun(first) || begun(idle) || begun(busy) || !begun(elsewhere) || begun(behind) {
		t.Fatal("on each GPU one large fill begins, and none overtakes on another")
	}
	s.done(first)
	if !begun(busy) || begun(idle) {
		t.Fatal("a process whose queues had work goes first")
	}
	s.done(busy)
	if !begun(idle) || begun(behind) {
		t.Fatal("the next of the GPU did not begin")
	}
	s.done(idle)
	s.done(elsewhere)
	s.done(behind)
	var small []*turn
	for range maxFills + 1 {
		small = append(small, s.newTurn(planOf(map[string]uint64{"a": 4096}), false))
	}
	for i, x := range small {
		if begun(x) != (i < maxFills) {
			t.Errorf("small fill %d: begun %v", i, begun(x))
		}
	}
}

// A fill begins when it is its turn and its process runs, or has not for a while.
func TestAfter(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ran, never := make(chan struct{}), make(chan struct{})
	turn := &turn{begin: make(chan struct{})}
	when, soon, stopped := turn.after(ctx, ran, time.Hour), turn.after(ctx, never, 0), turn.after(ctx, never, time.Hour)
	close(turn.begin)
	<-soon
	select {
	case <-when:
		t.Error("a fill began before its process ran")
	case <-time.After(10 * time.Millisecond):
	}
	close(ran)
	<-when
	cancel()
	select {
	case <-stopped:
		t.Error("a fill began that nobody wants")
	case <-time.After(10 * time.Millisecond):
	}
	if p := headStart(planOf(map[string]uint64{"a": 16 << 30})); p < time.Second/20 || p > time.Second {
		t.Errorf("16 GiB wait %v", p)
	}
}

// processOf is a process with a GTT BO of a page, which holds the pointers of its queue,
// VRAM that the driver maps for CPUs, and VRAM that it does not.
func processOf(t *testing.T, hidden uint64, ranges []image.PrivRange) image.Process {
	t.Helper()
	const gpu, va = 7, 0x7f0000000000
	m := &imagepb.Process{Pid: proto.Uint32(1), NumOfGpus: proto.Uint32(1), NumOfBos: proto.Uint64(3)}
	for i, bo := range []struct {
		flags uint32
		size  uint64
	}{{abi.KFDMemGTT, pageSize}, {abi.KFDMemVRAM | abi.KFDMemPublic, 4 << 20}, {abi.KFDMemVRAM, hidden}} {
		m.Bos = append(m.Bos, &imagepb.BO{Addr: proto.Uint64(va + uint64(i)<<30), Size: proto.Uint64(bo.size),
			Offset: proto.Uint64(0), AllocFlags: proto.Uint32(bo.flags), GpuId: proto.Uint32(gpu)})
	}
	priv := image.PrivData{Devices: make([]abi.KFDPrivDevice, 1), BOs: make([]abi.KFDPrivBO, 3), Ranges: ranges,
		Queues: []image.PrivQueue{{KFDPrivQueue: abi.KFDPrivQueue{ObjectType: abi.KFDPrivObjectQueue,
			ReadPtrAddr: va + 128, WritePtrAddr: va + 56}}}}
	m.PrivData, m.NumOfObjects = priv.Append(nil), proto.Uint32(priv.Objects())
	m.Devices = []*imagepb.Device{{GpuId: proto.Uint32(gpu)}}
	layout, err := image.ProcessLayout(1, m)
	if err != nil {
		t.Fatal(err)
	}
	return image.Process{Name: "amdgpu-kfd-1.img", ID: 1, Message: m, Layout: layout}
}

func TestFollowers(t *testing.T) {
	svm := image.PrivRange{KFDPrivSVMRange: abi.KFDPrivSVMRange{ObjectType: abi.KFDPrivObjectSVMRange, Size: 1},
		Attrs: make([]abi.KFDSVMAttribute, abi.KFDPrivSVMCommonAttrs+1)}
	none := make([]bool, 3) // is shared
	if got := lazyBOs(processOf(t, 2<<20, nil), none); !slices.Equal(got, []bool{false, false, true}) {
		t.Errorf("lazy ones: %v", got)
	}
	if got := lazyBOs(processOf(t, minLazy-pageSize, nil), none); got != nil {
		t.Errorf("of little: %v", got)
	}
	if got := lazyBOs(processOf(t, 2<<20, []image.PrivRange{svm}), none); got != nil {
		t.Errorf("with shared virtual memory: %v", got)
	}
	if got := lazyBOs(processOf(t, 2<<20, nil), []bool{false, false, true}); got != nil {
		t.Errorf("what another process holds too: %v", got)
	}
	p := processOf(t, 2<<20, nil)
	p.Message.PrivData = p.Message.PrivData[:20]
	if got := lazyBOs(p, none); got != nil {
		t.Errorf("of a state that is not understood: %v", got)
	}
}

func TestIdle(t *testing.T) {
	p := processOf(t, 2<<20, nil)
	bo := p.Layout.BOs[0]
	images := t.TempDir()
	for _, tc := range []struct {
		read, written uint64
		idle          bool
	}{{5, 5, true}, {5, 6, false}, {0, 0, true}} {
		b := make([]byte, bo.Offset+bo.Size)
		binary.NativeEndian.PutUint64(b[bo.Offset+128:], tc.read)
		binary.NativeEndian.PutUint64(b[bo.Offset+56:], tc.written)
		if err := os.WriteFile(filepath.Join(images, bo.File), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := idle(images, p); got != tc.idle {
			t.Errorf("read to %d, written to %d: idle %v", tc.read, tc.written, got)
		}
	}
	if idle(t.TempDir(), p) {
		t.Error("pointers that cannot be read make a process idle")
	}
}

// A process has mapped an extent when its CPU can touch it, not as a file.
func TestMapped(t *testing.T) {
	const at = 1 << 32
	dev, err := os.OpenFile("/dev/zero", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "model"))
	if err == nil {
		err = file.Truncate(at + 1<<20)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, tc := range []struct {
		name string
		f    *os.File
		prot int
		off  int64
		want bool
	}{
		{"a device, to be read", dev, unix.PROT_READ, at, true},
		{"a device, its last page", dev, unix.PROT_WRITE, at + 7*pageSize, true},
		{"a device, behind it", dev, unix.PROT_READ, at + 8*pageSize, false},
		{"a device, before it", dev, unix.PROT_READ, at - 4*pageSize, false},
		{"a device, not to be touched", dev, unix.PROT_NONE, at, false},
		{"a file", file, unix.PROT_READ, at, false},
	} {
		mem, err := unix.Mmap(int(tc.f.Fd()), tc.off, 4*pageSize, tc.prot, unix.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		got, err := mapped(os.Getpid(), []extent{{off: at, end: at + 8*pageSize}}, anyDevice)
		if err != nil || got != tc.want {
			t.Errorf("%s: %v, %v", tc.name, got, err)
		}
		if err := unix.Munmap(mem); err != nil {
			t.Fatal(err)
		}
	}
}
