package service

import (
	"context"

	"github.com/gpucr/gpucr-fs/daemon/check"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/kfd/topology"
	"github.com/gpucr/gpucr-fs/restore/feed"
)

// CheckRequest asks whether a checkpoint can be restored on a host.
type CheckRequest struct {
	Ref      string            `json:"ref"`      // name, tag or ID prefix
	Host     check.Host        `json:"host"`     // as seen from where the restore will run
	Settings topology.Settings `json:"settings"` // of CRIU's amdgpu plugin
	Fast     bool              `json:"fast,omitempty"`
}

// Check tells whether a checkpoint can be restored on a host. What stands in the way is in the result, not an error.
var Check = define("check", func(ctx context.Context, env *Env, r CheckRequest) (check.Report, error) {
	c, err := env.Store.Checkpoint(r.Ref)
	if err != nil {
		return check.Report{}, err
	}
	req := check.Request{
		Host:     r.Host,
		Settings: r.Settings,
		Memory:   feed.Stored{Store: env.Store, Ref: c.Info().ID}.FS(),
	}
	if !r.Fast {
		req.Verify = func(ctx context.Context) (index.VerifyResult, error) {
			return env.Store.Verify(
				ctx,
				index.VerifyOptions{Names: []string{c.Info().Name}, Progress: func(done, total int64) {
					env.Progress(wire.Progress{Done: done, Total: total, Unit: "bytes"})
				}},
			)
		}
	}
	return check.Run(ctx, c, req)
})
