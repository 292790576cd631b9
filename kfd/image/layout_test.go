package image

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
)

func TestParseName(t *testing.T) {
	for s, want := range map[string]Name{
		"amdgpu-kfd-7.img":                    {Kind: ProcessFile, ID: 7},
		"amdgpu-pages-7-00a0.img":             {Kind: PagesFile, ID: 7, GPUID: 0xa0},
		"amdgpu-pages-7-1f00d.img":            {Kind: PagesFile, ID: 7, GPUID: 0x1f00d},
		"amdgpu-renderD-2147483647.img":       {Kind: RenderNodeFile, ID: math.MaxInt32},
		"amdgpu-drm-pages-8-128-000b.img":     {Kind: RenderPagesFile, ID: 8, Minor: 128, Index: 11},
		"amdgpu-drm-pages-8-128-12345.img":    {Kind: RenderPagesFile, ID: 8, Minor: 128, Index: 0x12345},
		"amdgpu-dmabuf_9.img":                 {Kind: DmabufFile, ID: 9},
		"amdgpu-dmabuf-9.img":                 {},
		"amdgpu-kfd--7.img":                   {},
		"amdgpu-kfd-07.img":                   {},
		"amdgpu-kfd-+7.img":                   {},
		"amdgpu-kfd-7.img.old":                {},
		"amdgpu-kfd-7":                        {},
		"amdgpu-kfd-.img":                     {},
		"amdgpu-kfd-99999999999999999999.img": {},
		"amdgpu-pages-7-A0.img":               {},
		"amdgpu-pages-7-a0.img":               {},
		"amdgpu-pages-7-100000000.img":        {},
		"amdgpu-pages-7.img":                  {},
		"amdgpu-drm-pages-8-128.img":          {},
		"dir/amdgpu-kfd-7.img":                {},
		"pages-1.img":                         {},
		"":                                    {},
	} {
		got, ok := ParseName(s)
		if got != want || ok != (want != Name{}) {
			t.Errorf("%q parses to %+v, %v, want %+v", s, got, ok, want)
		}
		if ok && got.String() != s {
			t.Errorf("%q comes out as %q", s, got)
		}
	}
}

func TestPlaceOfEveryBO(t *testing.T) {
	p, _, err := DecodeProcess(golden(t, "later/amdgpu-kfd-7.img"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := ProcessLayout(7, p)
	if err != nil {
		t.Fatal(err)
	}
	const a, b = "amdgpu-pages-7-a000.img", "amdgpu-pages-7-b111.img"
	type place struct {
		file         string
		offset, size int64
		kind         Kind
		gpu, handle  uint32
	}
	want := []place{
		{a, 8, 1 << 20, VRAM, 0xa000, 1},
		{b, 8, 8192, GTT, 0xb111, 0},
		{"", 0, 4096, Userptr, 0xa000, abi.DRMInvalidHandle},
		{a, 8 + 1<<20, 5 << 32, VRAM, 0xa000, 2},
		{"", 0, 8192, Doorbell, 0xa000, abi.DRMInvalidHandle},
		{"", 0, 4096, MMIO, 0xb111, abi.DRMInvalidHandle},
		{b, 8 + 8192, 12288, VRAM, 0xb111, 7},
	}
	if len(l.BOs) != len(want) {
		t.Fatalf("%d buffer objects, want %d", len(l.BOs), len(want))
	}
	for i, bo := range l.BOs {
		if got := (place{bo.File, bo.Offset, bo.Size, bo.Kind, bo.GPUID, bo.Handle}); got != want[i] || bo.Index != i ||
			bo.Image != "amdgpu-kfd-7.img" {
			t.Errorf("buffer object %d lies at %+v, want %+v", i, bo, want[i])
		}
	}
	files := []Pages{{a, 0xa000, 8 + 1<<20 + 5<<32, true}, {b, 0xb111, 8 + 8192 + 12288, true}}
	if !reflect.DeepEqual(l.Files, files) {
		t.Errorf("files %+v, want %+v", l.Files, files)
	}
	for file, want := range map[string][]int64{
		a: {8, 8 + 1<<20, 8 + 1<<20 + 5<<32}, b: {8, 8 + 8192, 8 + 8192 + 12288}, "amdgpu-pages-7-dead.img": nil,
	} {
		if got := l.Cuts()[file]; !reflect.DeepEqual(got, want) {
			t.Errorf("%s is cut at %v, want %v", file, got, want)
		}
	}
}

func TestPlaceOfRenderBOs(t *testing.T) {
	r, _, err := DecodeRenderNode(golden(t, "later/amdgpu-renderD-8.img"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := RenderNodeLayout(8, r)
	if err != nil {
		t.Fatal(err)
	}
	want := []BO{
		{Image: "amdgpu-renderD-8.img", Index: 0, GPUID: 0xa000, Kind: VRAM, Addr: 1, Size: 8192, Handle: 7,
			File: "amdgpu-drm-pages-8-128-0000.img", Offset: 8},
		{Image: "amdgpu-renderD-8.img", Index: 1, GPUID: 0xa000, Kind: GTT, Size: 8 << 30, Handle: 37,
			File: "amdgpu-drm-pages-8-128-0001.img", Offset: 8},
	}
	if !reflect.DeepEqual(l.BOs, want) {
		t.Errorf("buffer objects %+v, want %+v", l.BOs, want)
	}
	if cuts := l.Cuts()[want[1].File]; !reflect.DeepEqual(cuts, []int64{8, 8 + 8<<30}) {
		t.Errorf("cuts %v", cuts)
	}
	// The size in such a file's header is whatever the stack held.
	if err := l.Files[0].CheckHeader(12345); err != nil {
		t.Error(err)
	}
}

// device returns a GPU, or a CPU for gpu 0, with every required field.
func device(gpu uint32) *imagepb.Device {
	d := &imagepb.Device{}
	m := d.ProtoReflect()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if fd := fields.Get(i); !fd.IsList() {
			m.Set(fd, fd.Default())
		}
	}
	d.GpuId = proto.Uint32(gpu)
	return d
}

func process(gpus []uint32, bos ...*imagepb.BO) *imagepb.Process {
	p := &imagepb.Process{
		Pid: proto.Uint32(1), NumOfGpus: proto.Uint32(uint32(len(gpus))), NumOfCpus: proto.Uint32(0),
		NumOfBos: proto.Uint64(uint64(len(bos))), Bos: bos, NumOfObjects: proto.Uint32(0),
		SharedMemSize: proto.Uint64(0), SharedMemMagic: proto.Uint32(0), PrivData: []byte{},
	}
	for _, g := range gpus {
		p.Devices = append(p.Devices, device(g))
	}
	return p
}

func bo(gpu, flags uint32, size uint64) *imagepb.BO {
	return &imagepb.BO{
		Addr: proto.Uint64(0), Size: proto.Uint64(size), Offset: proto.Uint64(0),
		AllocFlags: proto.Uint32(flags), GpuId: proto.Uint32(gpu),
	}
}

func TestLayoutRefusesOverflow(t *testing.T) {
	const huge = math.MaxInt64 - 4096
	for want, p := range map[string]*imagepb.Process{
		"amdgpu-kfd-3.img: buffer object 1 has 9223372036854775808 bytes": process([]uint32{5}, bo(5, 1, 1),
			bo(5, 4, 1<<63)),
		"amdgpu-kfd-3.img: the buffer objects of GPU 0x5 exceed the size of a file": process([]uint32{5},
			bo(5, 1, huge), bo(5, 1, huge)),
		"amdgpu-kfd-3.img: buffer object 0 is on GPU 0x6, which is not listed": process([]uint32{5},
			bo(6, 1, 4096)),
	} {
		if _, err := ProcessLayout(3, p); !errors.Is(err, ErrCorrupt) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	// Without contents neither size nor GPU matters to a file.
	l, err := ProcessLayout(3, process([]uint32{5}, bo(6, abi.KFDMemUserptr, huge), bo(5, abi.KFDMemVRAM, huge),
		bo(6, 0, huge)))
	if err != nil || l.Files[0].Size != huge+8 || l.BOs[2].Kind != Other {
		t.Errorf("layout %+v, %v", l, err)
	}
	s := &Set{Processes: []Process{{Message: process(nil), Layout: l}}}
	for _, total := range s.Summary().Totals {
		if total.Bytes < 0 {
			t.Errorf("total %+v", total)
		}
	}
	if _, err := RenderNodeLayout(1,
		&imagepb.RenderNode{Bos: []*imagepb.RenderBO{{Size: proto.Uint64(math.MaxInt64)}}}); !errors.Is(err,
		ErrCorrupt) {
		t.Errorf("render node with an 8 EiB buffer object: %v", err)
	}
}

func TestLayoutOfManyLargeBOs(t *testing.T) {
	// 3,000 BOs of 3 GiB: far beyond what fits 32 bits, or a C int.
	var bos []*imagepb.BO
	for i := range 3000 {
		bos = append(bos, bo(uint32(1+i%2), abi.KFDMemVRAM, 3<<30))
	}
	l, err := ProcessLayout(1, process([]uint32{1, 2}, bos...))
	if err != nil {
		t.Fatal(err)
	}
	for i, bo := range l.BOs {
		if want := int64(8) + int64(i/2)*(3<<30); bo.Offset != want {
			t.Fatalf("buffer object %d at %d, want %d", i, bo.Offset, want)
		}
	}
	if got := len(l.Cuts()["amdgpu-pages-1-0002.img"]); got != 1501 {
		t.Errorf("%d cuts, want 1501", got)
	}
}

func TestKindNames(t *testing.T) {
	b, err := json.Marshal([]Kind{Other, VRAM, GTT, Userptr, Doorbell, MMIO, 99})
	if want := `["other","vram","gtt","userptr","doorbell","mmio","other"]`; err != nil || string(b) != want {
		t.Errorf("kinds are %s, %v, want %s", b, err, want)
	}
	b, err = json.Marshal([]Schema{SchemaAny, Schema42, SchemaLater})
	if want := `["any","4.2","later"]`; err != nil || string(b) != want {
		t.Errorf("schemas are %s, %v, want %s", b, err, want)
	}
	for flags, want := range map[uint32]Kind{
		abi.KFDMemVRAM | abi.KFDMemGTT | abi.KFDMemWritable: VRAM,
		abi.KFDMemGTT | abi.KFDMemUserptr:                   GTT,
		abi.KFDMemMMIORemap | abi.KFDMemUncached:            MMIO,
	} {
		if got := kindOf(flags); got != want {
			t.Errorf("flags %#x are %v, want %v", flags, got, want)
		}
	}
}
