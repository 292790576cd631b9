package image

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/bounded"
	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
)

// Schema is the version of the plugin's messages.
type Schema int

const (
	// SchemaAny is what an image has in which the versions do not differ: a
	// process without BOs. To an encoder it means: as the message is.
	SchemaAny Schema = iota
	// Schema42 is that of CRIU up to 4.2.
	Schema42
	// SchemaLater is that of CRIU's development branch after 4.2.
	SchemaLater
)

// String returns "any", "4.2" or "later".
func (s Schema) String() string {
	switch s {
	case Schema42:
		return "4.2"
	case SchemaLater:
		return "later"
	}
	return "any"
}

// MarshalText makes a schema readable in JSON.
func (s Schema) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// DecodeProcess decodes an amdgpu-kfd image, header included. The counts in it
// agree with its lists. Errors are [ErrCorrupt].
func DecodeProcess(file []byte) (*imagepb.Process, Schema, error) {
	return decodeProcess(file, &bounded.Budget{})
}

func decodeProcess(file []byte, g *bounded.Budget) (*imagepb.Process, Schema, error) {
	p := &imagepb.Process{}
	if err := decode(file, p, g); err != nil {
		return nil, 0, err
	}
	if err := checkProcess(p); err != nil {
		return nil, 0, err
	}
	with := 0
	for _, bo := range p.Bos {
		if bo.Handle != nil {
			with++
		}
	}
	switch with {
	case len(p.Bos):
		if with == 0 {
			return p, SchemaAny, nil
		}
		return p, SchemaLater, nil
	case 0:
		return p, Schema42, nil
	}
	return nil, 0, fmt.Errorf("%d of %d buffer objects have a handle: %w", with, len(p.Bos), ErrCorrupt)
}

// EncodeProcess encodes an amdgpu-kfd image, header included, in the given
// schema. A BO without a handle gets "none" where the schema requires one.
func EncodeProcess(p *imagepb.Process, s Schema) ([]byte, error) {
	if s != SchemaAny {
		p = proto.Clone(p).(*imagepb.Process)
	}
	for _, bo := range p.Bos {
		switch {
		case s == Schema42:
			bo.Handle = nil
		case s == SchemaLater && bo.Handle == nil:
			bo.Handle = proto.Uint32(abi.DRMInvalidHandle)
		}
	}
	if err := checkProcess(p); err != nil {
		return nil, err
	}
	return encode(p)
}

// DecodeRenderNode decodes an amdgpu-renderD image, header included. Errors
// are [ErrCorrupt].
func DecodeRenderNode(file []byte) (*imagepb.RenderNode, Schema, error) {
	return decodeRenderNode(file, &bounded.Budget{})
}

func decodeRenderNode(file []byte, g *bounded.Budget) (*imagepb.RenderNode, Schema, error) {
	r := &imagepb.RenderNode{}
	if err := decode(file, r, g); err != nil {
		return nil, 0, err
	}
	if r.Id == nil && r.DrmRenderMinor == nil && r.NumOfBos == nil && len(r.Bos) == 0 {
		return r, Schema42, nil
	}
	if err := checkRenderNode(r); err != nil {
		return nil, 0, err
	}
	for _, bo := range r.Bos {
		if bo.Object != nil {
			return r, SchemaAny, nil // ours, in dumps of either schema
		}
	}
	return r, SchemaLater, nil
}

// EncodeRenderNode encodes an amdgpu-renderD image, header included. In
// SchemaLater, and where it has BOs, the node needs its id and minor. In Schema42
// those have to be of the kind that CRIU's plugin does not know: their objects are
// numbered.
func EncodeRenderNode(r *imagepb.RenderNode, s Schema) ([]byte, error) {
	if s == Schema42 && len(r.Bos) > 0 {
		for i, bo := range r.Bos {
			if bo.Object == nil {
				return nil, fmt.Errorf(
					"render node %#x has buffer object %d without a number, which schema 4.2 cannot hold",
					r.GetGpuId(), i)
			}
		}
		s = SchemaLater
	}
	switch s {
	case Schema42:
		r = proto.Clone(r).(*imagepb.RenderNode)
		r.Id, r.DrmRenderMinor, r.NumOfBos = nil, nil, nil
	case SchemaLater:
		r = proto.Clone(r).(*imagepb.RenderNode)
		if r.NumOfBos == nil {
			r.NumOfBos = proto.Uint64(uint64(len(r.Bos)))
		}
		if err := checkRenderNode(r); err != nil {
			return nil, err
		}
	}
	return encode(r)
}

// DecodeDmabuf decodes an amdgpu-dmabuf image, header included. Errors are
// [ErrCorrupt].
func DecodeDmabuf(file []byte) (*imagepb.Dmabuf, error) {
	d := &imagepb.Dmabuf{}
	return d, decode(file, d, &bounded.Budget{})
}

// EncodeDmabuf encodes an amdgpu-dmabuf image, header included.
func EncodeDmabuf(d *imagepb.Dmabuf) ([]byte, error) { return encode(d) }

// What a BO takes besides its message, in bytes: its place in a layout, a cut; of
// a render node's BO, which has a file to itself, that file's name in several
// lists.
const (
	perBO       = 160
	perRenderBO = 448
)

// decode decodes within the budget what a layout of the message will take as
// well, each field counted as a BO.
func decode(file []byte, m proto.Message, g *bounded.Budget) error {
	body, err := payload(file)
	if err != nil {
		return err
	}
	each := int64(perBO)
	if _, ok := m.(*imagepb.RenderNode); ok {
		each = perRenderBO
	}
	cost := each * fields(body, g.Left(len(body))/each+1)
	cost += bounded.Cost(body, m, g.Left(len(body))-cost)
	if err = g.Take(cost, len(body)); err == nil {
		err = proto.Unmarshal(body, m)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return nil
}

// fields gives how many messages lie in b, or at least limit.
func fields(b []byte, limit int64) (n int64) {
	for len(b) > 0 && n < limit {
		_, typ, k := protowire.ConsumeField(b)
		if k < 0 {
			return n
		}
		if typ == protowire.BytesType {
			n++
		}
		b = b[k:]
	}
	return n
}

func encode(m proto.Message) ([]byte, error) {
	opts := proto.MarshalOptions{Deterministic: true}
	b, err := opts.MarshalAppend(AppendHeader(nil, uint64(opts.Size(m))), m)
	if err != nil {
		return nil, fmt.Errorf("encode amdgpu image: %w", err)
	}
	return b, nil
}

// checkProcess holds the counts against the lists, as the plugin allocates by
// the former and walks the latter.
func checkProcess(p *imagepb.Process) error {
	if n := p.GetNumOfBos(); n != uint64(len(p.Bos)) {
		return fmt.Errorf("image counts %d buffer objects and lists %d: %w", n, len(p.Bos), ErrCorrupt)
	}
	gpus, cpus := uint64(p.GetNumOfGpus()), uint64(p.GetNumOfCpus())
	if gpus+cpus != uint64(len(p.Devices)) {
		return fmt.Errorf("image counts %d GPUs and %d CPUs and lists %d devices: %w", gpus, cpus, len(p.Devices),
			ErrCorrupt)
	}
	seen := map[uint32]bool{}
	for _, d := range p.Devices {
		id := d.GetGpuId()
		if id != 0 && seen[id] {
			return fmt.Errorf("GPU %#x is listed twice: %w", id, ErrCorrupt)
		}
		if id != 0 {
			seen[id] = true
		}
	}
	if gpus != uint64(len(seen)) {
		return fmt.Errorf("image counts %d GPUs and lists %d: %w", gpus, len(seen), ErrCorrupt)
	}
	return nil
}

func checkRenderNode(r *imagepb.RenderNode) error {
	if r.Id == nil || r.DrmRenderMinor == nil || r.NumOfBos == nil {
		return fmt.Errorf("render node %#x lacks its id, minor or count: %w", r.GetGpuId(), ErrCorrupt)
	}
	if n := r.GetNumOfBos(); n != uint64(len(r.Bos)) {
		return fmt.Errorf("render node %#x counts %d buffer objects and lists %d: %w", r.GetGpuId(), n, len(r.Bos),
			ErrCorrupt)
	}
	for i, bo := range r.Bos {
		if n := bo.GetNumOfVms(); uint64(n) != uint64(len(bo.Mappings)) {
			return fmt.Errorf("buffer object %d of render node %#x counts %d mappings and lists %d: %w",
				i, r.GetGpuId(), n, len(bo.Mappings), ErrCorrupt)
		}
	}
	return nil
}
