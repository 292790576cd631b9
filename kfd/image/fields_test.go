package image

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gpucr/gpucr-fs/bounded"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
)

// format is the wire format of the plugin's messages, written down apart from
// the .proto: per message, a list of fields in order of their numbers. A field
// is NAME:TYPE; ! marks those that every version requires, * those it repeats.
var format = map[string]string{
	"Process": "pid:32! num_of_gpus:32! num_of_cpus:32! devices:Device* num_of_bos:64! bos:BO* num_of_objects:32! " +
		"shared_mem_size:64! shared_mem_magic:32! priv_data:bytes!",
	"Device": "node_id:32! gpu_id:32! cpu_cores_count:32! simd_count:32! mem_banks_count:32! caches_count:32! " +
		"io_links_count:32! max_waves_per_simd:32! lds_size_in_kb:32! gds_size_in_kb:32! num_gws:32! " +
		"wave_front_size:32! array_count:32! " +
		"simd_arrays_per_engine:32! cu_per_simd_array:32! simd_per_cu:32! max_slots_scratch_cu:32! vendor_id:32! " +
		"device_id:32! " +
		"domain:32! drm_render_minor:32! hive_id:64! num_sdma_engines:32! num_sdma_xgmi_engines:32! " +
		"num_sdma_queues_per_engine:32! num_cp_queues:32! fw_version:32! capability:32! sdma_fw_version:32! " +
		"vram_public:32! " +
		"vram_size:64! links:Link*",
	"Link":       "type:32! node_to_id:32!",
	"BO":         "addr:64! size:64! offset:64! alloc_flags:32! gpu_id:32! handle:32",
	"RenderNode": "gpu_id:32! id:32 drm_render_minor:32 num_of_bos:64 bos:RenderBO*",
	"RenderBO": "addr:64! size:64! offset:64! alloc_flags:64! alignment:64! preferred_domains:32! handle:32! " +
		"is_import:32! " +
		"num_of_vms:32! mappings:Mapping*",
	"Mapping": "addr:64! size:64! offset:64! flags:64!",
	"Dmabuf":  "gem_handle:32!",
}

type wireField struct {
	name, typ          string
	num                protowire.Number
	required, repeated bool
}

func wireFields(message string) []wireField {
	var out []wireField
	for i, s := range strings.Fields(format[message]) {
		name, typ, _ := strings.Cut(s, ":")
		out = append(out, wireField{
			name: name, typ: strings.Trim(typ, "!*"), num: protowire.Number(i + 1),
			required: strings.HasSuffix(typ, "!"), repeated: strings.HasSuffix(typ, "*"),
		})
	}
	return out
}

// build encodes a message with a different value in every field, none that a
// narrower type could hold, and leaves field skip out. vals receives the values
// by path.
func build(message, path string, skip string, vals map[string]any) []byte {
	var b []byte
	for _, f := range wireFields(message) {
		at := path + "." + f.name
		if at == skip {
			continue
		}
		switch f.typ {
		case "32":
			v := uint64(math.MaxUint32) - uint64(len(vals))
			vals[at] = v
			b = protowire.AppendVarint(protowire.AppendTag(b, f.num, protowire.VarintType), v)
		case "64":
			v := uint64(math.MaxUint64) - uint64(len(vals))
			vals[at] = v
			b = protowire.AppendVarint(protowire.AppendTag(b, f.num, protowire.VarintType), v)
		case "bytes":
			v := []byte(fmt.Sprint("value ", len(vals)))
			vals[at] = v
			b = protowire.AppendBytes(protowire.AppendTag(b, f.num, protowire.BytesType), v)
		default:
			for i := range 2 {
				b = protowire.AppendTag(b, f.num, protowire.BytesType)
				b = protowire.AppendBytes(b, build(f.typ, fmt.Sprintf("%s[%d]", at, i), skip, vals))
			}
		}
	}
	return b
}

// flatten lists a decoded message's values by path.
func flatten(m protoreflect.Message, path string, vals map[string]any) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := path + "." + string(fd.Name())
		switch {
		case fd.IsList():
			for i := range v.List().Len() {
				flatten(v.List().Get(i).Message(), fmt.Sprintf("%s[%d]", at, i), vals)
			}
		case fd.Kind() == protoreflect.BytesKind:
			vals[at] = v.Bytes()
		default:
			vals[at] = v.Uint()
		}
		return true
	})
}

var messages = map[string]func() proto.Message{
	"Process":    func() proto.Message { return &imagepb.Process{} },
	"RenderNode": func() proto.Message { return &imagepb.RenderNode{} },
	"Dmabuf":     func() proto.Message { return &imagepb.Dmabuf{} },
}

// TestEveryField reads and writes each field of each message with values of
// the field's full width, against an encoder that does not know the .proto.
func TestEveryField(t *testing.T) {
	for name, fresh := range messages {
		want := map[string]any{}
		raw := build(name, name, "", want)
		m := fresh()
		if err := decode(append(AppendHeader(nil, uint64(len(raw))), raw...), m, &bounded.Budget{}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if u := m.ProtoReflect().GetUnknown(); len(u) > 0 {
			t.Errorf("%s: unknown fields % x", name, u)
		}
		got := map[string]any{}
		flatten(m.ProtoReflect(), name, got)
		for path, v := range want {
			if fmt.Sprint(got[path]) != fmt.Sprint(v) {
				t.Errorf("%s reads as %v, want %v", path, got[path], v)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d values were read, %d written", name, len(got), len(want))
		}
		file, err := encode(m)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(file[HeaderSize:], raw) {
			t.Errorf("%s is not written as it was read", name)
		}

		// Without any one field the message is corrupt if that is required,
		// and else reads without it.
		for path := range want {
			field := path[strings.LastIndex(path, ".")+1:]
			less := build(name, name, path, map[string]any{})
			m := fresh()
			err := decode(append(AppendHeader(nil, uint64(len(less))), less...), m, &bounded.Budget{})
			if optional := isOptional(path, field); optional && err != nil {
				t.Errorf("without %s: %v", path, err)
			} else if !optional && !errors.Is(err, ErrCorrupt) {
				t.Errorf("without %s the image decodes: %v", path, err)
			}
		}
	}
}

// isOptional reports whether the field that a path ends in is one that 4.2
// does not have.
func isOptional(path, field string) bool {
	switch {
	case strings.HasPrefix(path, "Process.bos["):
		return field == "handle"
	case strings.Count(path, ".") == 1 && strings.HasPrefix(path, "RenderNode."):
		return field != "gpu_id"
	}
	return false
}

// TestFormatCoversProto fails when the .proto gains or loses a field that the
// list above does not.
func TestFormatCoversProto(t *testing.T) {
	all := imagepb.File_kfd_image_image_proto.Messages()
	if all.Len() != len(format) {
		t.Errorf("the .proto has %d messages, %d are known", all.Len(), len(format))
	}
	kinds := map[protoreflect.Kind]string{protoreflect.Uint32Kind: "32", protoreflect.Uint64Kind: "64",
		protoreflect.BytesKind: "bytes"}
	for i := range all.Len() {
		md := all.Get(i)
		want := wireFields(string(md.Name()))
		theirs := 0
		for i := range md.Fields().Len() {
			// From 1000 on they are ours, which nobody else needs.
			if fd := md.Fields().Get(i); fd.Number() < 1000 {
				theirs++
			} else if fd.Cardinality() != protoreflect.Optional {
				t.Errorf("%s.%s is not optional", md.Name(), fd.Name())
			}
		}
		if theirs != len(want) {
			t.Errorf("%s has %d fields, %d are known", md.Name(), theirs, len(want))
			continue
		}
		for _, f := range want {
			fd := md.Fields().ByNumber(f.num)
			typ := kinds[fd.Kind()]
			if fd.Message() != nil {
				typ = string(fd.Message().Name())
			}
			if string(fd.Name()) != f.name || typ != f.typ || fd.IsList() != f.repeated ||
				(fd.Cardinality() == protoreflect.Required) != f.required {
				t.Errorf("%s field %d is %s %s %s, want %+v", md.Name(), f.num, fd.Cardinality(), typ, fd.Name(), f)
			}
		}
	}
}
