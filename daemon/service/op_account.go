package service

import (
	"context"

	"github.com/gpucr/gpucr-fs/daemon/gpu"
	"github.com/gpucr/gpucr-fs/daemon/remotes"
	"github.com/gpucr/gpucr-fs/daemon/sharing"
	"github.com/gpucr/gpucr-fs/index"
)

// UsageRequest asks for the store's accounting.
type UsageRequest struct{}

// UsageResult is the accounting of a store, and of its remote store where it has one.
type UsageResult struct {
	index.Usage
	Remote *remotes.Account `json:"remote,omitempty"`
}

// Usage accounts for the bytes of a store.
var Usage = define("du", func(ctx context.Context, env *Env, _ UsageRequest) (res UsageResult, err error) {
	res.Usage, err = env.Store.Usage(ctx)
	if err == nil && res.Checkpoints == nil {
		res.Checkpoints = []index.Info{}
	}
	if err == nil && env.Remote != nil {
		res.Remote = env.Remote.Account(ctx)
	}
	return res, err
})

// DiffRequest names two sealed checkpoints: by name, tag or ID prefix.
type DiffRequest struct {
	A string `json:"a"`
	B string `json:"b"`
}

// DiffResult says per file what two checkpoints share.
type DiffResult struct {
	A      string           `json:"a"`
	B      string           `json:"b"`
	Shared int64            `json:"shared"` // sums over Files
	Zero   int64            `json:"zero"`
	Unique int64            `json:"unique"`
	Files  []index.FileDiff `json:"files"`
	// BOs are the buffer objects of B's GPU side, each with the one of A that has the same contents; shared bytes lie
	// in chunks that A has.
	BOs        []gpu.BO `json:"buffer_objects,omitempty"`
	GPUProblem string   `json:"gpu_problem,omitempty"` // why GPU images could not be read
}

// Diff compares two checkpoints.
var Diff = define("diff", func(ctx context.Context, env *Env, r DiffRequest) (DiffResult, error) {
	a, err := env.Store.Checkpoint(r.A)
	if err != nil {
		return DiffResult{}, err
	}
	b, err := env.Store.Checkpoint(r.B)
	if err != nil {
		return DiffResult{}, err
	}
	res := DiffResult{A: a.Info().Name, B: b.Info().Name}
	if res.Files, err = env.Store.Diff(ctx, res.A, res.B); err != nil {
		return DiffResult{}, err
	}
	if res.Files == nil {
		res.Files = []index.FileDiff{}
	}
	for _, f := range res.Files {
		res.Shared += f.Shared
		res.Zero += f.Zero
		res.Unique += f.Unique
	}
	res.BOs, err = sharing.BOs(ctx, a, b)
	if err != nil && index.ClassOf(err) != index.Corrupt && ctx.Err() == nil {
		res.GPUProblem, err = err.Error(), nil
	}
	return res, err
})

// TagRequest changes the tags of a sealed checkpoint.
type TagRequest struct {
	Name   string   `json:"name"`
	Add    []string `json:"add,omitempty"`
	Remove []string `json:"remove,omitempty"`
}

// Tag changes tags and gives the checkpoint as it is then.
var Tag = define("tag", func(ctx context.Context, env *Env, r TagRequest) (Brief, error) {
	c, err := env.Store.Checkpoint(r.Name)
	if err != nil {
		return Brief{}, err
	}
	name := c.Info().Name
	if len(r.Add)+len(r.Remove) > 0 {
		if err := env.Store.Tag(ctx, name, r.Add, r.Remove); err != nil {
			return Brief{}, err
		}
		if c, err = env.Store.Checkpoint(name); err != nil {
			return Brief{}, err
		}
	}
	return brief(c.Info()), nil
})
