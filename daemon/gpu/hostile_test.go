package gpu_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/archive"
	"github.com/gpucr/gpucr-fs/daemon/gpu"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
	"github.com/gpucr/gpucr-fs/tests/budget"
)

// hostileDir tells a child of the tests where the images are that it is to read.
const hostileDir = "GPU_TEST_HOSTILE"

// fill gives an image of n bytes: head, and as many repetitions of what makes a message large in memory and small on
// disk.
func fill(t *testing.T, head proto.Message, n int, repeated proto.Message) []byte {
	t.Helper()
	o := proto.MarshalOptions{AllowPartial: true}
	b, err := o.Marshal(head)
	if err != nil {
		t.Fatal(err)
	}
	one, err := o.Marshal(repeated)
	if err != nil {
		t.Fatal(err)
	}
	b = append(b, bytes.Repeat(one, (n-len(b))/len(one))...)
	return append(image.AppendHeader(nil, uint64(len(b))), b...)
}

// hostileImages are images that take a hundred times their length when they are decoded, or have loops over loops in
// those who use them.
func hostileImages(t *testing.T, n int) map[string][]byte {
	u32, u64 := proto.Uint32, proto.Uint64
	bo := &imagepb.BO{Addr: u64(0), Size: u64(1), Offset: u64(0), AllocFlags: u32(abi.KFDMemVRAM), GpuId: u32(1)}
	process := func(bos, gpus int) *imagepb.Process {
		p := &imagepb.Process{
			Pid:            u32(1),
			NumOfGpus:      u32(uint32(gpus)),
			NumOfCpus:      u32(0),
			NumOfBos:       u64(uint64(bos)),
			NumOfObjects:   u32(0),
			SharedMemSize:  u64(0),
			SharedMemMagic: u32(0),
			PrivData:       []byte{},
		}
		for i := range gpus {
			p.Devices = append(p.Devices, device(uint32(i+1)))
		}
		return p
	}
	one, err := proto.Marshal(&imagepb.Process{Bos: []*imagepb.BO{bo}, Pid: nil})
	if err == nil {
		t.Fatal("a message without its fields")
	}
	one, _ = proto.MarshalOptions{AllowPartial: true}.Marshal(&imagepb.Process{Bos: []*imagepb.BO{bo}})
	withBOs := func(n, gpus int) []byte {
		head := process(0, gpus)
		k := (n - proto.Size(head) - 10) / len(one)
		head.NumOfBos = u64(uint64(k))
		return fill(t, head, proto.Size(head)+k*len(one), &imagepb.Process{Bos: []*imagepb.BO{bo}})
	}
	render := &imagepb.RenderBO{
		Addr:             u64(0),
		Size:             u64(0),
		Offset:           u64(0),
		AllocFlags:       u64(0),
		Alignment:        u64(0),
		PreferredDomains: u32(0),
		Handle:           u32(0),
		IsImport:         u32(0),
		NumOfVms:         u32(0),
	}
	node := func(n int) []byte {
		head := &imagepb.RenderNode{GpuId: u32(1), Id: u32(1), DrmRenderMinor: u32(128), NumOfBos: u64(0)}
		each, _ := proto.MarshalOptions{
			AllowPartial: true,
		}.Marshal(&imagepb.RenderNode{Bos: []*imagepb.RenderBO{render}})
		k := (n - proto.Size(head) - 10) / len(each)
		head.NumOfBos = u64(uint64(k))
		return fill(t, head, proto.Size(head)+k*len(each), &imagepb.RenderNode{Bos: []*imagepb.RenderBO{render}})
	}
	return map[string][]byte{
		"empty-bos/amdgpu-kfd-1.img":      fill(t, process(0, 1), n, &imagepb.Process{Bos: []*imagepb.BO{{}}}),
		"small-bos/amdgpu-kfd-1.img":      withBOs(n, 1),
		"bos-and-gpus/amdgpu-kfd-1.img":   withBOs(n/2, 20000),
		"as-many-as-fit/amdgpu-kfd-1.img": withBOs(1<<20, 1),
		"render-bos/amdgpu-renderD-1.img": node(n),
		"render-fit/amdgpu-renderD-1.img": node(2 << 20),
		"empty-devices/amdgpu-kfd-1.img":  fill(t, process(0, 1), n, &imagepb.Process{Devices: []*imagepb.Device{{}}}),
		"empty-mappings/amdgpu-renderD-1.img": fill(t, &imagepb.RenderNode{GpuId: u32(1)}, n,
			&imagepb.RenderNode{Bos: []*imagepb.RenderBO{{Mappings: make([]*imagepb.Mapping, 1000)}}}),
	}
}

func device(id uint32) *imagepb.Device {
	d := &imagepb.Device{}
	m := d.ProtoReflect()
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		if !fd.IsList() {
			m.Set(fd, fd.Default())
		}
	}
	d.GpuId = &id
	return d
}

// TestHostileImages: whatever an image holds, reading and sealing it takes memory in proportion to its length. Each
// is sealed, and looked at, in a process of its own, whose peak is taken.
func TestHostileImages(t *testing.T) {
	if dir := os.Getenv(hostileDir); dir != "" {
		readHostile(t, dir)
		return
	}
	images := hostileImages(t, 8<<20)
	large := hostileImages(t, 64<<20)
	for _, name := range []string{"empty-bos/amdgpu-kfd-1.img", "small-bos/amdgpu-kfd-1.img",
		"render-bos/amdgpu-renderD-1.img"} {
		images["large-"+name] = large[name]
	}
	children := budget.NewChildren(t)
	for name, b := range images {
		t.Run(filepath.Dir(name), func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), b, 0o600); err != nil {
				t.Fatal(err)
			}
			// A program with a store takes more: its cache is 32 MiB here.
			children.Run(t, hostileDir+"="+dir, len(b), 96<<20)
		})
	}
}

// readHostile seals the images in dir and looks at them.
func readHostile(t *testing.T, dir string) {
	begin := time.Now()
	store := filepath.Join(t.TempDir(), "store")
	if err := index.Init(store, index.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	s, err := index.Open(
		t.Context(),
		store,
		index.Options{
			FreeFloor: 1,
			CacheSize: 32 << 20,
			Cuts:      gpu.Cuts,
			Logger:    slog.New(slog.NewTextHandler(&said, nil)),
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.WriteFile(filepath.Join(dir, "inventory.img"), []byte("inventory"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Import(context.Background(), s, "a", dir, archive.ImportOptions{}); err != nil {
		t.Fatal(err) // what cannot be understood is stored as it is
	}
	sealed := time.Since(begin)
	c, err := s.Checkpoint("a")
	if err != nil {
		t.Fatal(err)
	}
	_, err = gpu.Inspect(c, nil)
	_, err2 := gpu.Count(c.FS())
	budget.Tell(t, begin, fmt.Sprintf("%v of it to seal: %.100v, %.100v", sealed.Round(time.Millisecond), err, err2))
}
