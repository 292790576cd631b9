package image

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/tests/budget"
)

// The seeds are the golden files, whole, truncated and with a wrong header.
func addSeeds(f *testing.F, names ...string) {
	for _, name := range names {
		file := golden(f, name)
		f.Add(file)
		f.Add(file[:len(file)/2])
		f.Add(append(AppendHeader(nil, 1<<63), file[HeaderSize:]...))
	}
	f.Add([]byte{})
	f.Add(AppendHeader(nil, 0))
}

func FuzzDecodeProcess(f *testing.F) {
	addSeeds(f, "later/amdgpu-kfd-7.img", "v42/amdgpu-kfd-7.img")
	f.Fuzz(func(t *testing.T, file []byte) {
		defer budget.Watch(t, len(file))()
		p, schema, err := DecodeProcess(file)
		if err != nil {
			return
		}
		out, err := EncodeProcess(p, schema)
		if err != nil {
			t.Fatalf("decoded but not encoded: %v", err)
		}
		again, schema2, err := DecodeProcess(out)
		if err != nil || schema2 != schema || !proto.Equal(p, again) {
			t.Fatalf("read again as %v (%v), %v", schema2, schema, err)
		}
		for _, s := range []Schema{Schema42, SchemaLater} {
			out, err := EncodeProcess(p, s)
			if err != nil {
				t.Fatal(err)
			}
			if _, got, err := DecodeProcess(out); err != nil || (got != s && len(p.Bos) > 0) {
				t.Fatalf("written as %v, read as %v, %v", s, got, err)
			}
		}
		l, err := ProcessLayout(1, p)
		if err != nil {
			return
		}
		checkLayout(t, l)
		set := &Set{Processes: []Process{{Name: "x", Message: p, Layout: l}}}
		set.Summary()
	})
}

// checkLayout asserts that BOs lie one behind another from the header to the
// end of their file.
func checkLayout(t *testing.T, l *Layout) {
	end := map[string]int64{}
	for _, bo := range l.BOs {
		if bo.Size < 0 || bo.Offset < 0 {
			t.Fatalf("negative place %+v", bo)
		}
		if bo.File == "" {
			continue
		}
		if want := end[bo.File]; bo.Offset != max(want, HeaderSize) {
			t.Fatalf("%+v does not follow its predecessor, which ends at %d", bo, want)
		}
		end[bo.File] = bo.Offset + bo.Size
	}
	cuts := l.Cuts()
	for _, f := range l.Files {
		if got := max(end[f.Name], HeaderSize); got != f.Size {
			t.Fatalf("%s has %d bytes, its buffer objects end at %d", f.Name, f.Size, got)
		}
		last := int64(0)
		for _, cut := range cuts[f.Name] {
			if cut <= last || cut > f.Size {
				t.Fatalf("%s is cut at %d after %d, before its end at %d", f.Name, cut, last, f.Size)
			}
			last = cut
		}
		if last != f.Size {
			t.Fatalf("%s is not cut at its end", f.Name)
		}
	}
}

func FuzzDecodeRenderNode(f *testing.F) {
	addSeeds(f, "later/amdgpu-renderD-8.img", "v42/amdgpu-renderD-8.img")
	f.Fuzz(func(t *testing.T, file []byte) {
		defer budget.Watch(t, len(file))()
		r, schema, err := DecodeRenderNode(file)
		if err != nil {
			return
		}
		out, err := EncodeRenderNode(r, schema)
		if err != nil {
			t.Fatalf("decoded but not encoded: %v", err)
		}
		again, schema2, err := DecodeRenderNode(out)
		if err != nil || schema2 != schema || !proto.Equal(r, again) {
			t.Fatalf("read again as %v (%v), %v", schema2, schema, err)
		}
		if l, err := RenderNodeLayout(1, r); err == nil {
			checkLayout(t, l)
		}
	})
}

func FuzzDecodeDmabuf(f *testing.F) {
	addSeeds(f, "later/amdgpu-dmabuf_9.img")
	f.Fuzz(func(t *testing.T, file []byte) {
		defer budget.Watch(t, len(file))()
		d, err := DecodeDmabuf(file)
		if err != nil {
			return
		}
		out, err := EncodeDmabuf(d)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := DecodeDmabuf(out); err != nil || !proto.Equal(d, again) {
			t.Fatalf("%v became %v, %v", d, again, err)
		}
	})
}

func FuzzParsePrivData(f *testing.F) {
	f.Add(samplePriv().Append(nil), uint8(2), uint8(2), uint32(3))
	f.Add((&PrivData{}).Append(nil), uint8(0), uint8(0), uint32(0))
	f.Add([]byte{1, 0, 0, 0}, uint8(255), uint8(255), uint32(1<<32-1))
	f.Fuzz(func(t *testing.T, b []byte, gpus, bos uint8, objects uint32) {
		defer budget.Watch(t, len(b))()
		p, err := ParsePrivData(b, int(gpus), int(bos), objects)
		if err != nil {
			return
		}
		if p.Objects() != objects {
			t.Fatalf("%d objects, want %d", p.Objects(), objects)
		}
		// The kernel's order of objects is not ours to demand, so only the
		// second writing must repeat the first.
		out := p.Append(nil)
		again, err := ParsePrivData(out, int(gpus), int(bos), objects)
		if err != nil || len(out) != len(b) || !bytes.Equal(again.Append(nil), out) {
			t.Fatalf("private data of %d bytes became %d, %v", len(b), len(out), err)
		}
	})
}

func FuzzParseName(f *testing.F) {
	for _, s := range []string{"amdgpu-kfd-7.img", "amdgpu-pages-7-00a0.img", "amdgpu-drm-pages-8-128-000b.img",
		"amdgpu-dmabuf_9.img", "amdgpu-renderD-8.img", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, ok := ParseName(s); ok && n.String() != s {
			t.Fatalf("%q comes out as %q", s, n)
		}
	})
}
