package image

import (
	"fmt"
	"math"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
)

// Kind is where a BO lives.
type Kind int

// Kinds of BOs.
const (
	Other Kind = iota
	VRAM
	GTT
	Userptr
	Doorbell
	MMIO
)

var kindNames = [...]string{Other: "other", VRAM: "vram", GTT: "gtt", Userptr: "userptr", Doorbell: "doorbell",
	MMIO: "mmio"}

// String returns the kind in lower case.
func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		k = Other
	}
	return kindNames[k]
}

// MarshalText makes a kind readable in JSON.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// kindOf returns the kind of a BO of the KFD.
func kindOf(allocFlags uint32) Kind {
	switch {
	case allocFlags&abi.KFDMemVRAM != 0:
		return VRAM
	case allocFlags&abi.KFDMemGTT != 0:
		return GTT
	case allocFlags&abi.KFDMemUserptr != 0:
		return Userptr
	case allocFlags&abi.KFDMemDoorbell != 0:
		return Doorbell
	case allocFlags&abi.KFDMemMMIORemap != 0:
		return MMIO
	}
	return Other
}

// BO is one buffer object and the place of its contents.
type BO struct {
	Image  string `json:"image"`  // the image that describes it
	Index  int    `json:"index"`  // its place in that image: the kernel's order
	GPUID  uint32 `json:"gpu_id"` // as the process knows it
	Kind   Kind   `json:"kind"`
	Addr   uint64 `json:"addr"` // in the GPU's address space
	Size   int64  `json:"size"` // bytes
	Handle uint32 `json:"handle"`
	// File holds the contents from Offset on; "" when no file does.
	File   string `json:"file,omitempty"`
	Offset int64  `json:"offset,omitempty"`
}

// Pages is one file of contents.
type Pages struct {
	Name  string `json:"name"`
	GPUID uint32 `json:"gpu_id"`
	Size  int64  `json:"size"` // of the whole file, header included
	// Header tells whether the file's header holds the payload's size; in a
	// render pages file it holds nothing.
	Header bool `json:"-"`
}

// Layout is the place of every BO that one image describes.
type Layout struct {
	Files []Pages
	BOs   []BO
}

// ProcessLayout computes the layout of the pages files of process image id. It
// fails with [ErrCorrupt] when sizes overflow a file's 63 bits or a BO with
// contents belongs to no GPU of the image.
func ProcessLayout(id int, p *imagepb.Process) (*Layout, error) {
	image := Name{Kind: ProcessFile, ID: id}.String()
	l := &Layout{BOs: make([]BO, 0, len(p.Bos))}
	file := map[uint32]int{}
	for _, d := range p.Devices {
		if gpu := d.GetGpuId(); gpu != 0 {
			file[gpu] = len(l.Files)
			name := Name{Kind: PagesFile, ID: id, GPUID: gpu}.String()
			l.Files = append(l.Files, Pages{Name: name, GPUID: gpu, Size: HeaderSize, Header: true})
		}
	}
	for i, e := range p.Bos {
		bo := BO{
			Image: image, Index: i, GPUID: e.GetGpuId(), Kind: kindOf(e.GetAllocFlags()),
			Addr: e.GetAddr(), Handle: abi.DRMInvalidHandle,
		}
		if e.Handle != nil {
			bo.Handle = *e.Handle
		}
		if e.GetSize() > math.MaxInt64 {
			return nil, fmt.Errorf("%s: buffer object %d has %d bytes: %w", image, i, e.GetSize(), ErrCorrupt)
		}
		bo.Size = int64(e.GetSize())
		if e.GetAllocFlags()&abi.KFDMemPaged != 0 {
			at, ok := file[bo.GPUID]
			if !ok {
				return nil, fmt.Errorf("%s: buffer object %d is on GPU %#x, which is not listed: %w", image, i,
					bo.GPUID, ErrCorrupt)
			}
			f := &l.Files[at]
			if bo.Size > math.MaxInt64-f.Size {
				return nil, fmt.Errorf("%s: the buffer objects of GPU %#x exceed the size of a file: %w", image,
					bo.GPUID, ErrCorrupt)
			}
			bo.File, bo.Offset = f.Name, f.Size
			f.Size += bo.Size
		}
		l.BOs = append(l.BOs, bo)
	}
	return l, nil
}

// RenderNodeLayout computes the layout of the pages files of a render node's
// image, which has none in CRIU's schema 4.2. What is imported in an image of ours
// has its contents elsewhere.
func RenderNodeLayout(id int, r *imagepb.RenderNode) (*Layout, error) {
	image := Name{Kind: RenderNodeFile, ID: id}.String()
	l := &Layout{BOs: make([]BO, 0, len(r.Bos))}
	for i, e := range r.Bos {
		bo, err := renderBO(image, i, r.GetGpuId(), e)
		if err != nil {
			return nil, err
		}
		if e.GetIsImport() == 0 || e.Object == nil {
			name := Name{Kind: RenderPagesFile, ID: int(r.GetId()), Minor: int(r.GetDrmRenderMinor()), Index: i}
			l.contents(&bo, name)
		}
		l.BOs = append(l.BOs, bo)
	}
	return l, nil
}

// DmabufLayout computes the layout of the pages file of a dma-buf's image, which
// has one where no other image has the object.
func DmabufLayout(id int, d *imagepb.Dmabuf) (*Layout, error) {
	l := &Layout{}
	if d.Bo == nil {
		return l, nil
	}
	bo, err := renderBO(Name{Kind: DmabufFile, ID: id}.String(), 0, d.GetGpuId(), d.Bo)
	if err != nil {
		return nil, err
	}
	l.contents(&bo, Name{Kind: RenderPagesFile, ID: id, Minor: int(d.GetDrmRenderMinor())})
	l.BOs = append(l.BOs, bo)
	return l, nil
}

// contents gives a BO a file to itself.
func (l *Layout) contents(bo *BO, name Name) {
	bo.File, bo.Offset = name.String(), HeaderSize
	l.Files = append(l.Files, Pages{Name: bo.File, GPUID: bo.GPUID, Size: HeaderSize + bo.Size})
}

// renderBO is a buffer object of a render node, without contents.
func renderBO(image string, index int, gpu uint32, e *imagepb.RenderBO) (BO, error) {
	if e.GetSize() > math.MaxInt64-HeaderSize {
		return BO{}, fmt.Errorf("%s: buffer object %d has %d bytes: %w", image, index, e.GetSize(), ErrCorrupt)
	}
	kind := Other
	switch {
	case e.GetPreferredDomains()&abi.AMDGPUDomainVRAM != 0:
		kind = VRAM
	case e.GetPreferredDomains()&abi.AMDGPUDomainGTT != 0:
		kind = GTT
	}
	return BO{Image: image, Index: index, GPUID: gpu, Kind: kind, Addr: e.GetAddr(), Size: int64(e.GetSize()),
		Handle: e.GetHandle()}, nil
}

// Cuts returns where each file of contents should be cut so that every BO begins
// and ends a chunk: the end of its header and of every BO, in ascending order.
func (l *Layout) Cuts() map[string][]int64 {
	end := make(map[string]int64, len(l.Files))
	for _, f := range l.Files {
		end[f.Name] = f.Size
	}
	cuts := make(map[string][]int64, len(l.Files))
	for _, bo := range l.BOs {
		if bo.File != "" && bo.Size > 0 && bo.Offset < end[bo.File] {
			cuts[bo.File] = append(cuts[bo.File], bo.Offset)
		}
	}
	for name, size := range end {
		// The file may be longer: an older dump's bytes follow.
		cuts[name] = append(cuts[name], size)
	}
	return cuts
}

// CheckHeader holds the header of a file of contents against the layout.
func (f Pages) CheckHeader(payload uint64) error {
	if want := uint64(f.Size - HeaderSize); f.Header && payload != want {
		return fmt.Errorf("%s: header announces %d bytes, its buffer objects have %d: %w", f.Name, payload, want,
			ErrCorrupt)
	}
	return nil
}
