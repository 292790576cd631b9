package image

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/gpucr/gpucr-fs/bounded"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
)

// Set is all that the plugin keeps of one checkpoint, contents excepted.
type Set struct {
	Schema      Schema
	Processes   []Process
	RenderNodes []RenderNode
	Dmabufs     []Dmabuf
}

// Process is one amdgpu-kfd image.
type Process struct {
	Name    string
	ID      int
	Message *imagepb.Process
	Layout  *Layout
}

// RenderNode is one amdgpu-renderD image.
type RenderNode struct {
	Name    string
	ID      int
	Message *imagepb.RenderNode
	Layout  *Layout
}

// Dmabuf is one amdgpu-dmabuf image.
type Dmabuf struct {
	Name    string
	ID      int
	Message *imagepb.Dmabuf
	Layout  *Layout
}

// Empty reports whether the checkpoint has no image of the plugin.
func (s *Set) Empty() bool {
	return len(s.Processes) == 0 && len(s.RenderNodes) == 0 && len(s.Dmabufs) == 0
}

// maxImage bounds in bytes what is read of one image into memory, maxImages
// what is read of all. A BO takes some 320 bytes: this is enough for 800,000 of
// a process.
const (
	maxImage  = 256 << 20
	maxImages = 1 << 30
)

// Read reads the plugin's images of one checkpoint, in the order of their
// names; files of contents are not opened. Errors name the file.
func Read(fsys fs.FS) (*Set, error) {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return nil, err
	}
	s := &Set{}
	var budget bounded.Budget
	left := int64(maxImages)
	for _, e := range entries {
		n, ok := ParseName(e.Name())
		if !ok || n.Kind == PagesFile || n.Kind == RenderPagesFile {
			continue
		}
		if i, err := e.Info(); err != nil {
			return nil, err
		} else if left -= i.Size(); i.Size() > maxImage || left < 0 {
			return nil, fmt.Errorf("%s: %d bytes are more than it can have: %w", n, i.Size(), ErrCorrupt)
		}
		file, err := fs.ReadFile(fsys, e.Name())
		if err != nil {
			return nil, err
		}
		schema, err := s.add(n, file, &budget)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n, err)
		}
		if schema == SchemaAny {
			continue
		}
		if s.Schema != SchemaAny && s.Schema != schema {
			return nil, fmt.Errorf("%s: schema %s among images of schema %s: %w", n, schema, s.Schema, ErrCorrupt)
		}
		s.Schema = schema
	}
	return s, nil
}

func (s *Set) add(n Name, file []byte, g *bounded.Budget) (Schema, error) {
	switch n.Kind {
	case ProcessFile:
		m, schema, err := decodeProcess(file, g)
		if err != nil {
			return 0, err
		}
		l, err := ProcessLayout(n.ID, m)
		if err != nil {
			return 0, err
		}
		s.Processes = append(s.Processes, Process{n.String(), n.ID, m, l})
		return schema, nil
	case RenderNodeFile:
		m, schema, err := decodeRenderNode(file, g)
		if err != nil {
			return 0, err
		}
		l, err := RenderNodeLayout(n.ID, m)
		if err != nil {
			return 0, err
		}
		s.RenderNodes = append(s.RenderNodes, RenderNode{n.String(), n.ID, m, l})
		return schema, nil
	default:
		m, err := DecodeDmabuf(file)
		if err != nil {
			return 0, err
		}
		l, err := DmabufLayout(n.ID, m)
		if err != nil {
			return 0, err
		}
		s.Dmabufs = append(s.Dmabufs, Dmabuf{n.String(), n.ID, m, l})
		if m.Object != nil {
			return SchemaAny, nil // ours, in dumps of either schema
		}
		return SchemaLater, nil
	}
}

// Layouts returns the layout of every image that has one.
func (s *Set) Layouts() []*Layout {
	var out []*Layout
	for _, p := range s.Processes {
		out = append(out, p.Layout)
	}
	for _, r := range s.RenderNodes {
		out = append(out, r.Layout)
	}
	for _, d := range s.Dmabufs {
		out = append(out, d.Layout)
	}
	return out
}

// BOs returns every BO of the checkpoint, image by image.
func (s *Set) BOs() []BO {
	var out []BO
	for _, l := range s.Layouts() {
		out = append(out, l.BOs...)
	}
	return out
}

// Cuts returns where every file of contents should be cut; see [Layout.Cuts].
func (s *Set) Cuts() map[string][]int64 {
	all := map[string][]int64{}
	for _, l := range s.Layouts() {
		for file, cuts := range l.Cuts() {
			// Two images may name one file: the first counts.
			if _, ok := all[file]; !ok {
				all[file] = cuts
			}
		}
	}
	return all
}

// Verify holds the files of contents against the images: each is there, long
// enough for its BOs, and its header agrees. It returns every error found,
// joined, each naming its file.
func (s *Set) Verify(fsys fs.FS) error {
	var errs []error
	for _, l := range s.Layouts() {
		for _, f := range l.Files {
			errs = append(errs, f.verify(fsys))
		}
	}
	return errors.Join(errs...)
}

func (f Pages) verify(fsys fs.FS) error {
	file, err := fsys.Open(f.Name)
	if err != nil {
		return err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return err
	}
	if st.Size() < f.Size {
		return fmt.Errorf("%s: file has %d bytes, its buffer objects end at %d: %w", f.Name, st.Size(), f.Size,
			ErrCorrupt)
	}
	var head [HeaderSize]byte
	if _, err := io.ReadFull(file, head[:]); err != nil {
		return fmt.Errorf("%s: read header: %w", f.Name, err)
	}
	n, err := Header(head[:])
	if err != nil {
		return err
	}
	return f.CheckHeader(n)
}
