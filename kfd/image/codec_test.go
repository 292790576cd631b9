package image

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
)

// The files under testdata were encoded by protoc from the plugin's own
// schemas: testdata/v42 from CRIU 4.2's, testdata/later from its development
// branch's.
func golden(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// reencode decodes a file of the named kind and encodes it again.
func reencode(t *testing.T, name string, file []byte, s Schema) ([]byte, Schema) {
	t.Helper()
	n, ok := ParseName(filepath.Base(name))
	if !ok {
		t.Fatalf("%s is not a name of the plugin", name)
	}
	var out []byte
	var got Schema
	var err, err2 error
	switch n.Kind {
	case ProcessFile:
		var m *imagepb.Process
		m, got, err = DecodeProcess(file)
		if err == nil {
			out, err2 = EncodeProcess(m, s)
		}
	case RenderNodeFile:
		var m *imagepb.RenderNode
		m, got, err = DecodeRenderNode(file)
		if err == nil {
			out, err2 = EncodeRenderNode(m, s)
		}
	case DmabufFile:
		var m *imagepb.Dmabuf
		m, err = DecodeDmabuf(file)
		if err == nil {
			out, err2 = EncodeDmabuf(m)
		}
	}
	if err := errors.Join(err, err2); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return out, got
}

func TestRoundTripIsByteIdentical(t *testing.T) {
	for name, want := range map[string]Schema{
		"later/amdgpu-kfd-7.img":     SchemaLater,
		"later/amdgpu-renderD-8.img": SchemaLater,
		"later/amdgpu-dmabuf_9.img":  SchemaAny,
		"v42/amdgpu-kfd-7.img":       Schema42,
		"v42/amdgpu-renderD-8.img":   Schema42,
	} {
		file := golden(t, name)
		for _, s := range []Schema{SchemaAny, want} {
			out, got := reencode(t, name, file, s)
			if got != want {
				t.Errorf("%s is read as schema %v, want %v", name, got, want)
			}
			if !bytes.Equal(out, file) {
				t.Errorf("%s, written as %v: %d bytes differ from the %d read", name, s, len(out), len(file))
			}
		}
	}
}

func TestSchemaConversion(t *testing.T) {
	later := golden(t, "later/amdgpu-kfd-7.img")
	v42 := golden(t, "v42/amdgpu-kfd-7.img")
	if out, _ := reencode(t, "amdgpu-kfd-7.img", later, Schema42); !bytes.Equal(out, v42) {
		t.Error("a later image written as 4.2 is not what 4.2 would have written")
	}
	up, _ := reencode(t, "amdgpu-kfd-7.img", v42, SchemaLater)
	m, s, err := DecodeProcess(up)
	if err != nil || s != SchemaLater {
		t.Fatalf("a 4.2 image written as later reads as %v, %v", s, err)
	}
	for i, bo := range m.Bos {
		if bo.GetHandle() != abi.DRMInvalidHandle {
			t.Errorf("buffer object %d has handle %d, want none", i, bo.GetHandle())
		}
	}

	node, _, err := DecodeRenderNode(golden(t, "later/amdgpu-renderD-8.img"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := EncodeRenderNode(node, Schema42); err == nil || !strings.Contains(err.Error(), "without a number") {
		t.Errorf("buffer objects of a render node were written as 4.2: %v", err)
	}
	for i, bo := range node.Bos {
		bo.Object = proto.Uint64(uint64(i) + 1)
	}
	out, err := EncodeRenderNode(node, Schema42)
	if err != nil {
		t.Fatal(err)
	}
	if m, s, err := DecodeRenderNode(out); err != nil || s != SchemaAny || !proto.Equal(m, node) {
		t.Errorf("numbered objects of a render node read as %v of schema %v, %v", m, s, err)
	}
	node.Bos, node.NumOfBos = nil, nil
	if out, err := EncodeRenderNode(node, Schema42); err != nil ||
		!bytes.Equal(out, golden(t, "v42/amdgpu-renderD-8.img")) {
		t.Errorf("render node as 4.2: % x, %v", out, err)
	}
	if _, err := EncodeRenderNode(&imagepb.RenderNode{GpuId: proto.Uint32(1)}, SchemaLater); err == nil {
		t.Error("a render node without a minor was written as later")
	}
	node.NumOfBos = nil
	out, err = EncodeRenderNode(node, SchemaLater)
	if err != nil {
		t.Fatal(err)
	}
	if got, _, err := DecodeRenderNode(out); err != nil || got.NumOfBos == nil || *got.NumOfBos != 0 {
		t.Errorf("the count of buffer objects was not filled in: %v, %v", got, err)
	}
	if node.NumOfBos != nil {
		t.Error("encoding changed the caller's message")
	}
}

func TestUnknownFieldsSurvive(t *testing.T) {
	file := golden(t, "later/amdgpu-dmabuf_9.img")
	// Field 100, varint 5, as a future plugin might append.
	file = append(file, 0xa0, 0x06, 0x05)
	binary.NativeEndian.PutUint64(file, uint64(len(file)-HeaderSize))
	if out, _ := reencode(t, "amdgpu-dmabuf_9.img", file, SchemaAny); !bytes.Equal(out, file) {
		t.Errorf("% x became % x", file, out)
	}
}

func TestBytesBehindPayloadAreIgnored(t *testing.T) {
	file := golden(t, "v42/amdgpu-kfd-7.img")
	out, _ := reencode(t, "amdgpu-kfd-7.img", append(bytes.Clone(file), "left by an older dump"...), SchemaAny)
	if !bytes.Equal(out, file) {
		t.Error("what lies behind the payload changed the image")
	}
}

func TestCorruptImages(t *testing.T) {
	good, _, err := DecodeProcess(golden(t, "later/amdgpu-kfd-7.img"))
	if err != nil {
		t.Fatal(err)
	}
	for name, breakIt := range map[string]func(*imagepb.Process){
		"counts 8 buffer objects and lists 7": func(p *imagepb.Process) { *p.NumOfBos++ },
		"counts 3 GPUs and 1 CPUs":            func(p *imagepb.Process) { *p.NumOfGpus++ },
		"counts 3 GPUs and lists 2":           func(p *imagepb.Process) { *p.NumOfGpus++; *p.NumOfCpus-- },
		"GPU 0xa000 is listed twice":          func(p *imagepb.Process) { *p.Devices[2].GpuId = 0xa000 },
		"6 of 7 buffer objects have a handle": func(p *imagepb.Process) { p.Bos[3].Handle = nil },
	} {
		p := proto.Clone(good).(*imagepb.Process)
		breakIt(p)
		file, err := encode(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := DecodeProcess(file); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), name) {
			t.Errorf("error %q does not say %q", err, name)
		}
		if strings.Contains(name, "handle") {
			continue // what decoding refuses, encoding mends
		}
		if _, err := EncodeProcess(p, SchemaLater); err == nil {
			t.Errorf("an image that %s was written", name)
		}
	}

	node, _, err := DecodeRenderNode(golden(t, "later/amdgpu-renderD-8.img"))
	if err != nil {
		t.Fatal(err)
	}
	for name, breakIt := range map[string]func(*imagepb.RenderNode){
		"counts 3 buffer objects and lists 2":                     func(r *imagepb.RenderNode) { *r.NumOfBos++ },
		"buffer object 0 of render node 0xa000 counts 3 mappings": func(r *imagepb.RenderNode) { *r.Bos[0].NumOfVms++ },
		"render node 0xa000 lacks its id, minor or count":         func(r *imagepb.RenderNode) { r.Id = nil },
	} {
		r := proto.Clone(node).(*imagepb.RenderNode)
		breakIt(r)
		file, err := encode(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := DecodeRenderNode(file); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), name) {
			t.Errorf("error %q does not say %q", err, name)
		}
	}

	file := golden(t, "later/amdgpu-kfd-7.img")
	for _, n := range []int{0, 7, 8, 100, len(file) - 1} {
		if _, _, err := DecodeProcess(file[:n]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("the first %d bytes decode: %v", n, err)
		}
	}
	if _, err := DecodeDmabuf(AppendHeader(nil, 0)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a dma-buf without a handle decodes: %v", err)
	}
}
