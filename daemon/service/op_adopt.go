package service

import (
	"context"
	"errors"
	"os"

	"github.com/gpucr/gpucr-fs/daemon/restores"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// AdoptRequest offers a restore whose daemon was killed. The guardian's descriptors are those of process PID with these
// numbers.
type AdoptRequest struct {
	restores.Serving
	PID   int `json:"pid"`
	Wire  int `json:"wire"`
	Setup int `json:"setup"`
}

// AdoptResult says who serves the restore now.
type AdoptResult struct {
	PID int `json:"pid"`
}

// Adopt takes a restore over from a successor that found a daemon running.
var Adopt = define("adopt", func(_ context.Context, env *Env, q AdoptRequest) (AdoptResult, error) {
	if env.Daemon == nil {
		return AdoptResult{}, &index.Error{Class: index.Unsupported, Op: "adopt",
			Err: errors.New("this needs a daemon")}
	}
	p, err := wire.OpenProcess(q.PID)
	if err != nil {
		return AdoptResult{}, err
	}
	defer p.Close()
	guardian, err := p.Descriptor(q.Wire)
	if err != nil {
		return AdoptResult{}, err
	}
	setup, err := p.Descriptor(q.Setup)
	if err != nil {
		guardian.Close()
		return AdoptResult{}, err
	}
	return AdoptResult{os.Getpid()}, env.Daemon.Restores.Adopt(q.Serving, guardian, setup)
})
