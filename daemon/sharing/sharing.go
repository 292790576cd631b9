// Package sharing tells what a checkpoint has in common with others of its store: bytes of its files, and buffer
// objects of its GPUs.
//
// It goes through the extents of every sealed checkpoint and holds them against the chunks of the one that is asked
// about. Memory: an entry for each of that one's chunks.
package sharing

import (
	"context"

	"github.com/gpucr/gpucr-fs/daemon/gpu"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/chunk"
)

// File splits one file's bytes: Size = Zero + Unique + Shared, counted against all other sealed checkpoints.
type File struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Zero   int64  `json:"zero"`
	Unique int64  `json:"unique"`
	Shared int64  `json:"shared"`
}

// Others are the checkpoints of a store that one is held against.
type Others struct {
	Store *index.Store
	All   []index.Info // of the store; what is not sealed, and the checkpoint itself, does not count
}

// each calls f for every sealed checkpoint but c.
func (o Others) each(ctx context.Context, c *index.Checkpoint, f func(*index.Checkpoint) error) error {
	self := c.Info().ID
	for _, i := range o.All {
		if i.State != index.Sealed || i.ID == self {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		other, err := o.Store.Checkpoint(i.Name)
		if index.ClassOf(err) == index.NotFound {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		if err := f(other); err != nil {
			return err
		}
	}
	return nil
}

// Chunks gives every chunk of c, true when another checkpoint has it.
func (o Others) Chunks(ctx context.Context, c *index.Checkpoint) (map[chunk.ID]bool, error) {
	shared := map[chunk.ID]bool{}
	err := eachExtent(ctx, c, func(_ index.FileInfo, x index.Extent) {
		if !x.Zero && x.ID != (chunk.ID{}) {
			shared[x.ID] = false
		}
	})
	if err != nil {
		return nil, err
	}
	return shared, o.each(ctx, c, func(other *index.Checkpoint) error {
		return eachExtent(ctx, other, func(_ index.FileInfo, x index.Extent) {
			if _, ok := shared[x.ID]; ok {
				shared[x.ID] = true
			}
		})
	})
}

// GPU tells of the GPU side of c, and which other checkpoints have the same buffer objects; nil where there is none.
// shared is what Chunks gave. problem says why GPU images make no sense; damage is an error.
func (o Others) GPU(
	ctx context.Context, c *index.Checkpoint, shared map[chunk.ID]bool,
) (report *gpu.Report, problem string, err error) {
	report, err = gpu.Inspect(c, func(id chunk.ID) bool { return shared[id] })
	if index.ClassOf(err) == index.Corrupt {
		return nil, "", err
	}
	if err != nil {
		return nil, err.Error(), nil
	}
	if report == nil {
		return nil, "", nil
	}
	return report, "", o.each(ctx, c, func(other *index.Checkpoint) error {
		// An other checkpoint that makes no sense is for its own info to tell.
		if bos, err := gpu.Placed(other, nil); err == nil {
			gpu.Holders(report.BOs, other.Info().Name, bos)
		}
		return nil
	})
}

// Files splits the bytes of every file of c. shared is what Chunks gave.
func Files(ctx context.Context, c *index.Checkpoint, shared map[chunk.ID]bool) ([]File, error) {
	files := []File{}
	for _, e := range c.Entries() {
		if e.Mode.IsRegular() {
			files = append(files, File{Path: e.Path, Size: e.Size})
		}
	}
	at := map[string]*File{}
	for i := range files {
		at[files[i].Path] = &files[i]
	}
	return files, eachExtent(ctx, c, func(e index.FileInfo, x index.Extent) {
		switch u := at[e.Path]; {
		case x.Zero:
			u.Zero += x.Len
		case shared[x.ID]:
			u.Shared += x.Len
		default:
			u.Unique += x.Len
		}
	})
}

// BOs gives the buffer objects of b, each with the one of a that has the same contents; shared bytes of them lie in
// chunks that a has. None where b has no GPU side.
func BOs(ctx context.Context, a, b *index.Checkpoint) ([]gpu.BO, error) {
	if t, err := gpu.Count(b.FS()); err != nil || t == nil {
		return nil, err
	}
	has := map[chunk.ID]bool{}
	err := eachExtent(ctx, a, func(_ index.FileInfo, x index.Extent) {
		if !x.Zero && x.ID != (chunk.ID{}) {
			has[x.ID] = true
		}
	})
	if err != nil {
		return nil, err
	}
	old, err := gpu.Placed(a, nil)
	if err != nil {
		return nil, err
	}
	list, err := gpu.Placed(b, func(id chunk.ID) bool { return has[id] })
	if err != nil {
		return nil, err
	}
	gpu.Match(old, list)
	return list, nil
}

// eachExtent calls f for every run of every file of a checkpoint.
func eachExtent(ctx context.Context, c *index.Checkpoint, f func(index.FileInfo, index.Extent)) error {
	for _, e := range c.Entries() {
		if !e.Mode.IsRegular() {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		file, err := c.Open(e.Path)
		if err != nil {
			return err
		}
		err = file.Extents(0, file.Size(), func(x index.Extent) bool {
			f(e, x)
			return true
		})
		file.Close()
		if err != nil {
			return err
		}
	}
	return nil
}
