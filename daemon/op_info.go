package daemon

import (
	"context"
	"path"

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
	if res.Files, err = fileUsage(ctx, env.Store, c, all); err != nil {
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

// fileUsage goes through the extents of all checkpoints; the memory it takes is that of c's distinct chunks.
func fileUsage(ctx context.Context, s *index.Store, c *index.Checkpoint, all []index.Info) ([]FileUsage, error) {
	shared := map[chunk.ID]bool{} // every chunk of c, true when another checkpoint has it
	err := eachExtent(ctx, c, func(_ index.FileInfo, x index.Extent) {
		if !x.Zero && x.ID != (chunk.ID{}) {
			shared[x.ID] = false
		}
	})
	if err != nil {
		return nil, err
	}
	self := c.Info().ID
	for _, i := range all {
		if i.State != index.Sealed || i.ID == self {
			continue
		}
		other, err := s.Checkpoint(i.Name)
		if index.ClassOf(err) == index.NotFound {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		if err := eachExtent(ctx, other, func(_ index.FileInfo, x index.Extent) {
			if _, ok := shared[x.ID]; ok {
				shared[x.ID] = true
			}
		}); err != nil {
			return nil, err
		}
	}
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
