package service

import (
	"context"
	"errors"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// OptimizeRequest asks to store chunks anew smaller.
type OptimizeRequest struct {
	DryRun bool  `json:"dry_run,omitempty"`
	Rate   int64 `json:"rate,omitempty"` // bytes a second read at most; 0 is no bound
}

// OptimizeResult says what was stored anew.
type OptimizeResult struct {
	DryRun bool `json:"dry_run"`
	index.OptimizeResult
}

// Optimize stores anew smaller what dumps stored fast. Dumps, and restores whose memory this daemon brings, go first.
var Optimize = define("optimize", func(ctx context.Context, env *Env, r OptimizeRequest) (OptimizeResult, error) {
	if r.Rate < 0 {
		return OptimizeResult{}, &index.Error{Class: index.Invalid, Op: "optimize", Err: errors.New("a negative rate")}
	}
	o := index.OptimizeOptions{DryRun: r.DryRun, Rate: r.Rate, Progress: func(done, total int64) {
		env.Progress(wire.Progress{Done: done, Total: total, Unit: "bytes"})
	}}
	if env.Daemon != nil {
		o.Busy = env.Daemon.Restores.Any
	}
	res, err := env.Store.Optimize(ctx, o)
	return OptimizeResult{r.DryRun, res}, err
})
