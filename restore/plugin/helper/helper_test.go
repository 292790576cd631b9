package helper

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd"
	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
	"github.com/gpucr/gpucr-fs/kfd/topology"
	"github.com/gpucr/gpucr-fs/restore/plugin/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plugin is a plugin's side of a helper.
type plugin struct {
	t    *testing.T
	conn *wire.Conn
	done chan error
}

// serve starts a helper that has said nothing yet.
func serve(t *testing.T, opts Options) *plugin {
	t.Helper()
	mine, other, err := wire.Pair()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := wire.NewConn(other)
	if err != nil {
		t.Fatal(err)
	}
	s := &plugin{t, mine, make(chan error, 1)}
	go func() { s.done <- Serve(context.Background(), theirs, opts) }()
	t.Cleanup(func() {
		mine.Close()
		s.end()
	})
	return s
}

// end waits until the helper has ended.
func (s *plugin) end() error {
	s.t.Helper()
	select {
	case err := <-s.done:
		s.done <- err
		return err
	case <-time.After(time.Minute):
		s.t.Fatal("the helper goes on")
		return nil
	}
}

func (s *plugin) send(m *wire.Message, files ...*os.File) {
	s.t.Helper()
	if err := s.conn.Send(m, files...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *plugin) ask(m *wire.Message, files ...*os.File) *wire.Message {
	s.t.Helper()
	s.send(m, files...)
	got, fds, err := s.conn.Receive()
	if err != nil {
		s.t.Fatal(err)
	}
	closeAll(fds)
	return got
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestProtocol(t *testing.T) {
	dir := open(t, t.TempDir())
	hello := &wire.Message{Type: wire.Hello, ID: stageDump, Count: 13}
	for _, tc := range []struct {
		name  string
		first []*wire.Message
	}{
		{"no hello", []*wire.Message{{Type: wire.DumpGo}}},
		{"a stage that is none", []*wire.Message{{Type: wire.Hello, ID: 1}}},
		{"a restore without a socket for tasks", []*wire.Message{{Type: wire.Hello, ID: stageRestore}}},
		{"contents of no process", []*wire.Message{hello, {Type: wire.DumpGo}}},
		{"buffer objects of no process", []*wire.Message{hello, {Type: wire.BOs, Count: 1}}},
		{"an answer for a question", []*wire.Message{hello, {Type: wire.OK}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := serve(t, Options{})
			for _, m := range tc.first {
				s.send(m, dir)
			}
			if err := s.end(); !errors.Is(err, wire.ErrProtocol) {
				t.Errorf("helper ended with %v", err)
			}
		})
	}
}

func TestEnds(t *testing.T) {
	dir := open(t, t.TempDir())
	t.Run("goodbye", func(t *testing.T) {
		s := serve(t, Options{})
		s.send(&wire.Message{Type: wire.Hello, ID: stageDump, Count: 13}, dir)
		if got := s.ask(&wire.Message{Type: wire.Bye}); got.Type != wire.OK || got.Status != 0 {
			t.Errorf("answer %+v", got)
		}
		if err := s.end(); err != nil {
			t.Error(err)
		}
		if _, _, err := s.conn.Receive(); err != io.EOF {
			t.Errorf("connection after the goodbye: %v", err)
		}
	})
	t.Run("without a word", func(t *testing.T) {
		s := serve(t, Options{})
		s.send(&wire.Message{Type: wire.Hello, ID: stageDump, Count: 13}, dir)
		s.conn.Close()
		if err := s.end(); err == nil || !strings.Contains(err.Error(), "without a goodbye") {
			t.Errorf("helper ended with %v", err)
		}
	})
	t.Run("a restore given up", func(t *testing.T) {
		s := serve(t, Options{Sys: fstest.MapFS{}, Announces: func(string) Announcer { return nil }})
		_, tasks, err := wire.Pair()
		if err != nil {
			t.Fatal(err)
		}
		defer tasks.Close()
		s.send(&wire.Message{Type: wire.Hello, ID: stageRestore, Count: 13}, dir, tasks)
		if got := s.ask(&wire.Message{Type: wire.Resume, PID: 1}); got.Status != -int32(unix.ENOENT) {
			t.Errorf("resume of a process without KFD: %+v", got)
		}
		if got := s.ask(&wire.Message{Type: wire.Bye, Status: -1}); got.Status != 0 {
			t.Errorf("goodbye: %+v", got)
		}
		if err := s.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestStalled(t *testing.T) {
	for _, done := range []uint64{1, 2} { // of 2
		ctx, progress, stop := stalled(context.Background(), 20*time.Millisecond, nil, false)
		progress(done, 2)
		select {
		case <-ctx.Done():
		case <-time.After(time.Minute):
			t.Fatalf("nobody noticed when %d of 2 bytes had moved", done)
		}
		if err := because(ctx, errors.New("read")); !strings.Contains(err.Error(), "no byte has moved") {
			t.Error(err)
		}
		stop()
	}
}

// A dump may take long to close its files.
func TestStalledWhileFilesAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, progress, stop := stalled(context.Background(), 10*time.Millisecond, nil, true)
		defer stop()
		progress(2, 2)
		time.Sleep(100 * time.Millisecond)
		if ctx.Err() != nil {
			t.Error(context.Cause(ctx))
		}
	})
}

// The buffers of the RESTORE ioctl for the checkpoint that package image tests
// with.
func TestRestoreBuffers(t *testing.T) {
	for _, dir := range []string{"v42", "later"} {
		set, err := image.Read(os.DirFS("../../../kfd/image/testdata/" + dir))
		if err != nil {
			t.Fatal(err)
		}
		p := set.Processes[0]
		var gpus []kfd.GPUPair
		for i, d := range p.Message.Devices {
			if d.GetGpuId() != 0 {
				gpus = append(gpus, kfd.GPUPair{Pair: topology.Pair{Src: d.GetGpuId(), Dst: uint32(i)},
					RenderMinor: uint32(200 + i)})
			}
		}
		mem, m, err := restoreBuffers(p, gpus)
		if err != nil {
			t.Fatal(err)
		}
		devices := make([]abi.KFDCRIUDeviceBucket, m.NumDevices)
		bos := make([]abi.KFDCRIUBoBucket, m.NumBOs)
		ranges := make([]wire.Range, m.NumRanges)
		if err := errors.Join(abi.Decode(mem.mem[m.Devices:m.BOs], devices), abi.Decode(mem.mem[m.BOs:m.Priv], bos),
			abi.Decode(mem.mem[m.Ranges:], ranges)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(mem.mem[m.Priv:m.Priv+m.PrivSize], p.Message.PrivData) ||
			m.NumObjects != p.Message.GetNumOfObjects() {
			t.Errorf("%s: private data differs", dir)
		}
		for i, d := range devices {
			if g := gpus[i]; d.UserGPUID != g.Src || d.ActualGPUID != g.Dst || d.DRMFD != g.RenderMinor {
				t.Errorf("%s: device %+v, want %+v", dir, d, g)
			}
		}
		for i, b := range bos {
			want := p.Message.Bos[i]
			if b.Addr != want.GetAddr() || b.Size != want.GetSize() || b.Offset != want.GetOffset() ||
				b.AllocFlags != want.GetAllocFlags() || b.GPUID != want.GetGpuId() {
				t.Errorf("%s: bo %+v, want %v", dir, b, want)
			}
		}
		if !slices.IsSortedFunc(ranges, func(a, b wire.Range) int {
			if a.Minor != b.Minor {
				return int(a.Minor) - int(b.Minor)
			}
			return int(min(1, a.Offset-min(a.Offset, b.Offset))) - int(min(1, b.Offset-min(a.Offset, b.Offset)))
		}) {
			t.Errorf("%s: ranges are not in order: %+v", dir, ranges)
		}
		mem.close()
	}
}

func TestPlaceOfDescriptors(t *testing.T) {
	f := open(t, os.DevNull)
	for _, tc := range []struct {
		first, count uint32
		files        int
		ok           bool
	}{{0, 2, 2, true}, {2, 1, 1, true}, {3, 1, 1, false}, {^uint32(0), 2, 2, false}, {1, 2, 1, false}} {
		slots := make([]*os.File, 3)
		files := slices.Repeat([]*os.File{f}, tc.files)
		if got := place(slots, &wire.Message{First: tc.first, Count: tc.count}, files); got != tc.ok {
			t.Errorf("%+v: %v", tc, got)
		}
	}
	if place([]*os.File{f}, &wire.Message{Count: 1}, []*os.File{f}) {
		t.Error("two descriptors of one BO")
	}
}

// machine is the one of the test data with one GPU more, that of the first id.
func machine(p image.Process, more uint32) *topology.System {
	sys := kfd.Topology(p.Message)
	first := *sys.GPUs()[0]
	first.ID, first.GPUID, first.Links = 99, more, nil
	sys.Nodes = append(sys.Nodes, &first)
	return sys
}

// A device cgroup hides GPUs from a task that the helper sees.
func TestVisibleGPUs(t *testing.T) {
	set, err := image.Read(os.DirFS("../../../kfd/image/testdata/v42"))
	if err != nil {
		t.Fatal(err)
	}
	p := set.Processes[0]
	r := &restore{session: &session{opts: Options{}}, set: set, sys: machine(p, 4711)}
	var ids []uint32
	for _, d := range p.Message.Devices {
		if d.GetGpuId() != 0 {
			ids = append(ids, d.GetGpuId())
		}
	}
	gpus, err := r.gpus(p, ids)
	if err != nil || len(gpus) != len(ids) {
		t.Fatalf("%+v, %v", gpus, err)
	}
	for _, g := range gpus {
		if g.Src != g.Dst {
			t.Errorf("GPU %#x is mapped to %#x", g.Src, g.Dst)
		}
	}
	if _, err := r.gpus(p, nil); err == nil || !strings.Contains(err.Error(), "this host shows 3 GPUs") {
		t.Errorf("all GPUs of the host: %v", err)
	}
}

// dumped gives the image of a process that has these devices on a machine.
func dumped(t *testing.T, devices []abi.KFDCRIUDeviceBucket, sys *topology.System) (
	msg *imagepb.Process, actual map[uint32]uint32, err error,
) {
	t.Helper()
	m := &wire.Message{PID: 7, NumDevices: uint32(len(devices)), BOs: deviceBucket * uint64(len(devices))}
	m.Priv = m.BOs
	mem, err := newShared(m.BOs)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.close()
	if err := abi.Encode(mem.mem, devices); err != nil {
		t.Fatal(err)
	}
	return processMessage(&kfdDump{msg: m, mem: mem}, sys)
}

// Devices are in the image as their host lists them: CRIU's plugin maps the first of
// an image onto the first that it finds, and would swap equal GPUs.
func TestDevicesAsListed(t *testing.T) {
	set, err := image.Read(os.DirFS("../../../kfd/image/testdata/v42"))
	if err != nil {
		t.Fatal(err)
	}
	sys := kfd.Topology(set.Processes[0].Message)
	var devices []abi.KFDCRIUDeviceBucket
	var want []uint32
	for i, n := range sys.Nodes {
		n.Listed = len(sys.Nodes) - i
		want = append([]uint32{n.ID}, want...)
		if n.IsGPU() {
			devices = append(devices, abi.KFDCRIUDeviceBucket{UserGPUID: n.GPUID, ActualGPUID: n.GPUID})
		}
	}
	msg, _, err := dumped(t, devices, sys)
	if err != nil {
		t.Fatal(err)
	}
	var got []uint32
	for _, d := range msg.Devices {
		got = append(got, d.GetNodeId())
	}
	if !slices.Equal(got, want) {
		t.Errorf("nodes %v in the image, listed as %v", got, want)
	}
}

// A GPU that a process does not use is not in its image, nor are links to it.
func TestUnusedGPU(t *testing.T) {
	set, err := image.Read(os.DirFS("../../../kfd/image/testdata/v42"))
	if err != nil {
		t.Fatal(err)
	}
	p := set.Processes[0]
	sys := machine(p, 4711)
	sys.Nodes[0].Links = append(sys.Nodes[0].Links, topology.Link{Type: topology.PCIe, To: 99})
	var devices []abi.KFDCRIUDeviceBucket
	for i, d := range p.Message.Devices {
		if d.GetGpuId() != 0 {
			devices = append(devices, abi.KFDCRIUDeviceBucket{UserGPUID: uint32(50 + i), ActualGPUID: d.GetGpuId()})
		}
	}
	msg, actual, err := dumped(t, devices, sys)
	if err != nil {
		t.Fatal(err)
	}
	if len(msg.Devices) != len(p.Message.Devices) || int(msg.GetNumOfGpus()) != len(devices) ||
		len(actual) != len(devices) {
		t.Errorf("%d devices, %d gpus, ids %v", len(msg.Devices), msg.GetNumOfGpus(), actual)
	}
	for i, d := range msg.Devices {
		if d.GetGpuId() != 0 &&
			(d.GetGpuId() != uint32(50+i) || actual[d.GetGpuId()] != p.Message.Devices[i].GetGpuId()) {
			t.Errorf("device %d has id %d, of GPU %#x", i, d.GetGpuId(), actual[d.GetGpuId()])
		}
		for _, l := range d.Links {
			if l.GetNodeToId() == 99 {
				t.Errorf("device %d links to a GPU that is not in the image", i)
			}
		}
	}
	devices[0].ActualGPUID = 1
	if _, _, err := dumped(t, devices, sys); err == nil ||
		!strings.Contains(err.Error(), "which the topology does not show") {
		t.Errorf("a GPU that the topology hides: %v", err)
	}
}
