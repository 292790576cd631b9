package image

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
)

func TestReadSet(t *testing.T) {
	for _, dir := range []string{"later", "v42"} {
		s, err := Read(os.DirFS("testdata/" + dir))
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]Schema{"later": SchemaLater, "v42": Schema42}[dir]
		if s.Schema != want || len(s.Processes) != 1 || len(s.RenderNodes) != 1 || s.Empty() {
			t.Errorf("%s: schema %v, %d processes, %d render nodes", dir, s.Schema, len(s.Processes),
				len(s.RenderNodes))
		}
	}
	s, err := Read(fstest.MapFS{"core-1.img": {}, "amdgpu-pages-1-0001.img": {}})
	if err != nil || !s.Empty() {
		t.Errorf("a checkpoint without GPU: %+v, %v", s, err)
	}
	for want, m := range map[string]fstest.MapFS{
		"amdgpu-dmabuf_1.img: 1 bytes are too few for a header": {"amdgpu-dmabuf_1.img": {Data: []byte{1}}},
		"amdgpu-renderD-8.img: schema 4.2 among images of schema later": {
			"amdgpu-kfd-7.img":     {Data: golden(t, "later/amdgpu-kfd-7.img")},
			"amdgpu-renderD-8.img": {Data: golden(t, "v42/amdgpu-renderD-8.img")},
		},
	} {
		if _, err := Read(m); !errors.Is(err, ErrCorrupt) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestVerifyContents(t *testing.T) {
	small, err := EncodeProcess(process([]uint32{1, 2, 3}, bo(1, 1, 4096), bo(2, 2, 8192)), Schema42)
	if err != nil {
		t.Fatal(err)
	}
	pages := func(payload uint64, n int) *fstest.MapFile {
		return &fstest.MapFile{Data: append(AppendHeader(nil, payload), make([]byte, n)...)}
	}
	m := fstest.MapFS{
		"amdgpu-kfd-1.img":        {Data: small},
		"amdgpu-pages-1-0001.img": pages(4096, 4096),
		"amdgpu-pages-1-0002.img": pages(8192, 8192+100), // left by an older dump
		"amdgpu-pages-1-0003.img": pages(0, 0),
	}
	s, err := Read(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(m); err != nil {
		t.Errorf("good files: %v", err)
	}
	if cuts := s.Cuts()["amdgpu-pages-1-0002.img"]; !reflect.DeepEqual(cuts, []int64{8, 8 + 8192}) {
		t.Errorf("cuts %v", cuts)
	}
	if cuts := s.Cuts()["pages-1.img"]; cuts != nil {
		t.Errorf("cuts %v in another's file", cuts)
	}
	m["amdgpu-pages-1-0001.img"] = pages(4096, 4095)
	m["amdgpu-pages-1-0002.img"] = pages(4096, 8192)
	delete(m, "amdgpu-pages-1-0003.img")
	err = s.Verify(m)
	for _, want := range []string{
		"amdgpu-pages-1-0001.img: file has 4103 bytes, its buffer objects end at 4104",
		"amdgpu-pages-1-0002.img: header announces 4096 bytes, its buffer objects have 8192",
		"amdgpu-pages-1-0003.img: file does not exist",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	if !errors.Is(err, ErrCorrupt) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("errors lost their class: %v", err)
	}
}

func TestSummary(t *testing.T) {
	s, err := Read(os.DirFS("testdata/later"))
	if err != nil {
		t.Fatal(err)
	}
	sum := s.Summary()
	vram := int64(1<<20 + 5<<32 + 12288 + 8192)
	if sum.VRAMBytes != vram || sum.GTTBytes != 8192+8<<30 || sum.Dmabufs != 1 {
		t.Errorf("VRAM %d GTT %d dma-bufs %d", sum.VRAMBytes, sum.GTTBytes, sum.Dmabufs)
	}
	want := []KindTotal{{VRAM, 4, vram}, {GTT, 2, 8192 + 8<<30}, {Userptr, 1, 4096}, {Doorbell, 1, 8192},
		{MMIO, 1, 4096}}
	if !reflect.DeepEqual(sum.Totals, want) {
		t.Errorf("totals %+v, want %+v", sum.Totals, want)
	}
	p := sum.Processes[0]
	if p.PID != 4242 || !p.XNACK || p.Events != 1 || p.Ranges != 1 || p.PrivNote != "" {
		t.Errorf("process %+v", p)
	}
	queues := []QueueSummary{
		{ID: 1, GPUID: 0xa000, Type: "aql", RingSize: 0x4000, Priority: 7},
		{ID: 2, GPUID: 0xa000, Type: "sdma", RingSize: 0x4000, Priority: 7},
	}
	if !reflect.DeepEqual(p.Queues, queues) {
		t.Errorf("queues %+v, want %+v", p.Queues, queues)
	}
	gpus := []GPUSummary{
		{GPUID: 0xa000, DeviceID: 1019, RenderMinor: 128, VRAMSize: 64 << 30,
			BOs: []KindTotal{{VRAM, 2, 1<<20 + 5<<32}, {Userptr, 1, 4096}, {Doorbell, 1, 8192}}},
		{GPUID: 0xb111, DeviceID: 2019, RenderMinor: 129, VRAMSize: 1<<64 - 1,
			BOs: []KindTotal{{VRAM, 1, 12288}, {GTT, 1, 8192}, {MMIO, 1, 4096}}},
	}
	if !reflect.DeepEqual(p.GPUs, gpus) {
		t.Errorf("GPUs %+v, want %+v", p.GPUs, gpus)
	}
	b, err := json.Marshal(sum)
	if err != nil || !strings.Contains(string(b),
		`"schema":"later","processes":[{"image":"amdgpu-kfd-7.img","pid":4242`) {
		t.Errorf("JSON %s, %v", b, err)
	}
}
