package service

import (
	"context"
	"path"

	"github.com/gpucr/gpucr-fs/daemon/gpu"
	"github.com/gpucr/gpucr-fs/daemon/inspect"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/chunk"
)

// InfoRequest names a sealed checkpoint.
type InfoRequest struct {
	Ref string `json:"ref"` // name, tag or ID prefix
}

// FileUsage splits one file's bytes: Size = Zero + Unique + Shared, counted against all other sealed checkpoints.
type FileUsage struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Zero   int64  `json:"zero"`
	Unique int64  `json:"unique"`
	Shared int64  `json:"shared"`
}

// InfoResult tells what a checkpoint is.
type InfoResult struct {
	Checkpoint index.Info      `json:"checkpoint"`
	CRIU       *inspect.Report `json:"criu,omitempty"`    // nil where there are no images
	Problem    string          `json:"problem,omitempty"` // why the images could not be read
	GPU        *gpu.Report     `json:"gpu,omitempty"`     // nil where the processes had no AMD GPU
	GPUProblem string          `json:"gpu_problem,omitempty"`
	Files      []FileUsage     `json:"files"`
}

// Info tells what a checkpoint is: its bytes, its files, its processes.
var Info = define("info", func(ctx context.Context, env *Env, r InfoRequest) (InfoResult, error) {
	c, err := env.Store.Checkpoint(r.Ref)
	if err != nil {
		return InfoResult{}, err
	}
	res := InfoResult{Checkpoint: c.Info()}
	all, err := env.Store.List(ctx)
	if err != nil {
		return res, err
	}
	for _, i := range all {
		if i.ID == res.Checkpoint.ID {
			res.Checkpoint = i
		}
	}
	shared, err := sharedChunks(ctx, env.Store, c, all)
	if err != nil {
		return res, err
	}
	if res.Files, err = fileUsage(ctx, c, shared); err != nil {
		return res, err
	}
	if err := res.addGPU(ctx, env.Store, c, all, shared); err != nil {
		return res, err
	}
	dir, ok := inspect.Find(c.FS())
	if !ok {
		return res, nil
	}
	report, err := inspect.Read(c.FS(), dir)
	if index.ClassOf(err) == index.Corrupt {
		return res, err
	}
	if err != nil {
		res.Problem = err.Error()
		return res, nil
	}
	zeroMemory(c, report, report.Processes)
	res.CRIU = report
	return res, nil
})

// addGPU tells of the GPU side, and which other checkpoints have the same buffer objects.
func (res *InfoResult) addGPU(
	ctx context.Context,
	s *index.Store,
	c *index.Checkpoint,
	all []index.Info,
	shared map[chunk.ID]bool,
) error {
	var err error
	res.GPU, err = gpu.Inspect(c, func(id chunk.ID) bool { return shared[id] })
	if index.ClassOf(err) == index.Corrupt {
		return err
	}
	if err != nil {
		res.GPU, res.GPUProblem = nil, err.Error()
	}
	if res.GPU == nil {
		return nil
	}
	return eachOther(ctx, s, c, all, func(other *index.Checkpoint) error {
		// An other checkpoint that makes no sense is for its own info to tell.
		if bos, err := gpu.Placed(other, nil); err == nil {
			gpu.Holders(res.GPU.BOs, other.Info().Name, bos)
		}
		return nil
	})
}

// zeroMemory takes the zero bytes of each process from the extents of its pages image.
func zeroMemory(c *index.Checkpoint, r *inspect.Report, list []*inspect.Process) {
	for _, p := range list {
		if p.Memory != nil {
			if st, err := c.Stat(path.Clean(p.Memory.Pages)); err == nil {
				p.Memory.Zero = uint64(st.Zero)
				r.Total.Zero += p.Memory.Zero
			}
		}
		zeroMemory(c, r, p.Children)
	}
}

// eachOther calls f for every other sealed checkpoint of the store.
func eachOther(
	ctx context.Context,
	s *index.Store,
	c *index.Checkpoint,
	all []index.Info,
	f func(*index.Checkpoint) error,
) error {
	self := c.Info().ID
	for _, i := range all {
		if i.State != index.Sealed || i.ID == self {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		other, err := s.Checkpoint(i.Name)
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

// sharedChunks goes through the extents of all checkpoints and gives every chunk of c, true when another checkpoint
// has it.
func sharedChunks(
	ctx context.Context,
	s *index.Store,
	c *index.Checkpoint,
	all []index.Info,
) (map[chunk.ID]bool, error) {
	shared := map[chunk.ID]bool{}
	err := eachExtent(ctx, c, func(_ index.FileInfo, x index.Extent) {
		if !x.Zero && x.ID != (chunk.ID{}) {
			shared[x.ID] = false
		}
	})
	if err != nil {
		return nil, err
	}
	return shared, eachOther(ctx, s, c, all, func(other *index.Checkpoint) error {
		return eachExtent(ctx, other, func(_ index.FileInfo, x index.Extent) {
			if _, ok := shared[x.ID]; ok {
				shared[x.ID] = true
			}
		})
	})
}

// fileUsage splits the bytes of every file of c.
func fileUsage(ctx context.Context, c *index.Checkpoint, shared map[chunk.ID]bool) ([]FileUsage, error) {
	files := []FileUsage{}
	for _, e := range c.Entries() {
		if e.Mode.IsRegular() {
			files = append(files, FileUsage{Path: e.Path, Size: e.Size})
		}
	}
	at := map[string]*FileUsage{}
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
