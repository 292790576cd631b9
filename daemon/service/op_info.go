package service

import (
	"context"
	"path"

	"github.com/gpucr/gpucr-fs/daemon/gpu"
	"github.com/gpucr/gpucr-fs/daemon/inspect"
	"github.com/gpucr/gpucr-fs/daemon/sharing"
	"github.com/gpucr/gpucr-fs/index"
)

// InfoRequest names a sealed checkpoint.
type InfoRequest struct {
	Ref string `json:"ref"` // name, tag or ID prefix
}

// InfoResult tells what a checkpoint is.
type InfoResult struct {
	Checkpoint index.Info      `json:"checkpoint"`
	CRIU       *inspect.Report `json:"criu,omitempty"`    // nil where there are no images
	Problem    string          `json:"problem,omitempty"` // why the images could not be read
	GPU        *gpu.Report     `json:"gpu,omitempty"`     // nil where the processes had no AMD GPU
	GPUProblem string          `json:"gpu_problem,omitempty"`
	Files      []sharing.File  `json:"files"`
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
	others := sharing.Others{Store: env.Store, All: all}
	shared, err := others.Chunks(ctx, c)
	if err != nil {
		return res, err
	}
	if res.Files, err = sharing.Files(ctx, c, shared); err != nil {
		return res, err
	}
	if res.GPU, res.GPUProblem, err = others.GPU(ctx, c, shared); err != nil {
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
