// Package gpu tells what the images of CRIU's amdgpu plugin in a checkpoint hold, and where the contents of each buffer
// object (BO) lie in the store.
//
// A BO begins and ends a chunk ([Cuts]). Its chunks are therefore a function of its contents alone: two BOs of the same
// contents have the same chunks, wherever they lie in whichever file, and are told apart from others by a digest over
// the references, without reading a byte of them.
package gpu

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/kfd/image"
)

// dirs are where in a checkpoint CRIU's images lie: its root, or where podman and the kubelet put them.
var dirs = []string{".", "checkpoint", "pre-checkpoint"}

// Read reads the plugin's images of a checkpoint and tells the folder they lie in; nil when there are none.
func Read(fsys fs.FS) (set *image.Set, dir string, err error) {
	for _, dir := range dirs {
		entries, err := fs.ReadDir(fsys, dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, "", err
		}
		if !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { _, ok := image.ParseName(e.Name()); return ok }) {
			continue
		}
		sub, err := fs.Sub(fsys, dir)
		if err != nil {
			return nil, "", err
		}
		set, err := image.Read(sub)
		if err != nil {
			return nil, dir, fmt.Errorf("%s: %w", dir, err)
		}
		return set, dir, nil
	}
	return nil, "", nil
}

// Cuts gives the offsets at which BOs begin and end in the files that hold their contents, by path:
// [index.Options.Cuts]. Without GPU state it only looks at the names of the files.
func Cuts(fsys fs.FS) (map[string][]int64, error) {
	set, dir, err := Read(fsys)
	if err != nil || set == nil {
		return nil, err
	}
	cuts := map[string][]int64{}
	for file, offs := range set.Cuts() {
		cuts[path.Join(dir, file)] = offs
	}
	return cuts, nil
}

// BO is a buffer object with the place of its contents in the store.
type BO struct {
	image.BO
	Name   string `json:"name"` // within the checkpoint: image and place in it
	Zero   int64  `json:"zero"`
	Shared int64  `json:"shared"`
	Unique int64  `json:"unique"`
	// SameAs names what has the same contents: a BO of the other checkpoint in a comparison, or the other checkpoints
	// of the store that have one.
	SameAs []string `json:"same_as,omitempty"`

	digest [sha256.Size]byte
}

// Placed gives the BOs of a checkpoint that have contents, with their bytes counted: shared are those in chunks for
// which shared answers true.
func Placed(c *index.Checkpoint, shared func(chunk.ID) bool) ([]BO, error) {
	set, dir, err := Read(c.FS())
	if err != nil || set == nil {
		return nil, err
	}
	return place(c, set, dir, shared)
}

func place(c *index.Checkpoint, set *image.Set, dir string, shared func(chunk.ID) bool) ([]BO, error) {
	var out []BO
	for _, bo := range set.BOs() {
		if bo.File == "" {
			continue
		}
		b := BO{BO: bo, Name: fmt.Sprintf("%s#%d", bo.Image, bo.Index)}
		b.File = path.Join(dir, bo.File)
		if err := b.walk(c, shared); err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// walk goes through the extents of a BO.
func (b *BO) walk(c *index.Checkpoint, shared func(chunk.ID) bool) error {
	f, err := c.Open(b.File)
	if err != nil {
		return err
	}
	defer f.Close()
	if b.Size > f.Size()-b.Offset {
		return fmt.Errorf("%s ends within buffer object %s: %w", b.File, b.Name, image.ErrCorrupt)
	}
	h := sha256.New()
	var zeros int64 // of a run that may go on
	flush := func() {
		if zeros > 0 {
			h.Write(binary.LittleEndian.AppendUint64([]byte{0}, uint64(zeros)))
			zeros = 0
		}
	}
	err = f.Extents(b.Offset, b.Size, func(x index.Extent) bool {
		switch {
		case x.Zero:
			zeros += x.Len
			b.Zero += x.Len
			return true
		case shared != nil && shared(x.ID):
			b.Shared += x.Len
		default:
			b.Unique += x.Len
		}
		flush()
		line := append([]byte{1}, x.ID[:]...)
		line = binary.LittleEndian.AppendUint64(line, uint64(x.ChunkOff))
		h.Write(binary.LittleEndian.AppendUint64(line, uint64(x.Len)))
		return true
	})
	flush()
	h.Sum(b.digest[:0])
	return err
}

// empty says that a BO holds zeros only: it is like every other of its size, which says nothing.
func (b *BO) empty() bool { return b.Zero == b.Size }

// Match fills SameAs of every BO of b that a has, too: in the same place, or else the first one that does.
func Match(a, b []BO) {
	first := map[[sha256.Size]byte]string{}
	at := map[string][sha256.Size]byte{}
	for i := range a {
		at[a[i].Name] = a[i].digest
		if _, ok := first[a[i].digest]; !ok {
			first[a[i].digest] = a[i].Name
		}
	}
	for i := range b {
		name, ok := first[b[i].digest]
		if d, there := at[b[i].Name]; there && d == b[i].digest {
			name = b[i].Name
		}
		if ok && !b[i].empty() {
			b[i].SameAs = []string{name}
		}
	}
}

// Holders adds to SameAs of every BO of list the name of a checkpoint that has one of the same contents.
func Holders(list []BO, name string, other []BO) {
	has := map[[sha256.Size]byte]bool{}
	for i := range other {
		has[other[i].digest] = true
	}
	for i := range list {
		if has[list[i].digest] && !list[i].empty() {
			list[i].SameAs = append(list[i].SameAs, name)
		}
	}
}

// Totals is the GPU side of a checkpoint in numbers.
type Totals struct {
	Processes int   `json:"processes"`
	GPUs      int   `json:"gpus"` // distinct ones that processes knew
	BOs       int   `json:"bos"`
	VRAM      int64 `json:"vram_bytes"`
	GTT       int64 `json:"gtt_bytes"`
}

// Count gives the totals of a checkpoint; nil when it has no GPU state.
func Count(fsys fs.FS) (*Totals, error) {
	set, _, err := Read(fsys)
	if err != nil || set == nil {
		return nil, err
	}
	sum := set.Summary()
	t := &Totals{Processes: len(set.Processes), BOs: len(set.BOs()), VRAM: sum.VRAMBytes, GTT: sum.GTTBytes}
	gpus := map[uint32]bool{}
	for _, p := range sum.Processes {
		for _, g := range p.GPUs {
			gpus[g.GPUID] = true
		}
	}
	t.GPUs = len(gpus)
	return t, nil
}

// Report is what info tells of the GPU side.
type Report struct {
	image.Summary
	BOs []BO `json:"buffer_objects"` // those with contents
}

// Inspect gives the report of a checkpoint; nil when it has no GPU state. shared is as in [Placed].
func Inspect(c *index.Checkpoint, shared func(chunk.ID) bool) (*Report, error) {
	set, dir, err := Read(c.FS())
	if err != nil || set == nil {
		return nil, err
	}
	r := &Report{Summary: set.Summary()}
	r.BOs, err = place(c, set, dir, shared)
	return r, err
}
