package service

import (
	"context"
	"errors"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// CollectRequest asks for a garbage collection.
type CollectRequest struct {
	DryRun bool `json:"dry_run,omitempty"`
}

// CollectResult says what a collection found and gave back.
type CollectResult struct {
	DryRun bool `json:"dry_run"`
	index.GCResult
	Damage string `json:"damage,omitempty"` // what kept something from being collected
	Hint   string `json:"hint,omitempty"`   // what to do about it
}

// Err gives the damage as an error of Class Corrupt, nil where there is none.
func (r CollectResult) Err() error {
	if r.Damage == "" {
		return nil
	}
	return &index.Error{Class: index.Corrupt, Hint: r.Hint, Err: errors.New(r.Damage)}
}

// Collect gives back the space of payload that no checkpoint uses. Damage is in the result, not an error.
var Collect = define("gc", func(ctx context.Context, env *Env, r CollectRequest) (CollectResult, error) {
	o := index.GCOptions{DryRun: r.DryRun, Progress: func(done, total int64) {
		env.Progress(wire.Progress{Done: done, Total: total, Unit: "packs"})
	}}
	if env.Remote != nil && !r.DryRun {
		o.Stands = env.Remote.Needed(ctx)
	}
	res, err := env.Store.GC(ctx, o)
	if res.Incomplete == nil {
		res.Incomplete = []string{}
	}
	out := CollectResult{DryRun: r.DryRun, GCResult: res}
	if index.ClassOf(err) == index.Corrupt {
		out.Damage, out.Hint, err = err.Error(), index.HintOf(err), nil
	}
	return out, err
})

// VerifyRequest asks to check checkpoints against what was written.
type VerifyRequest struct {
	Refs   []string `json:"refs,omitempty"`   // names, tags or ID prefixes; all when empty
	Subset float64  `json:"subset,omitempty"` // share of the payload to read; 0 means all
	Rate   int64    `json:"rate,omitempty"`   // bytes of payload read in a second; 0 is no bound
	Resume bool     `json:"resume,omitempty"` // go on with what was interrupted
}

// Verify checks payload and manifests. Damage is in the result, not an error.
var Verify = define("verify", func(ctx context.Context, env *Env, r VerifyRequest) (index.VerifyResult, error) {
	var names []string
	for _, ref := range r.Refs {
		c, err := env.Store.Checkpoint(ref)
		if err != nil {
			return index.VerifyResult{}, err
		}
		names = append(names, c.Info().Name)
	}
	o := index.VerifyOptions{Names: names, Subset: r.Subset, Rate: r.Rate, Resume: r.Resume}
	o.Progress = func(done, total int64) { env.Progress(wire.Progress{Done: done, Total: total, Unit: "bytes"}) }
	res, err := env.Store.Verify(ctx, o)
	if res.Problems == nil {
		res.Problems = []index.Problem{}
	}
	return res, err
})
