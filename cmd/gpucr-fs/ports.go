package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/restore"
	"github.com/gpucr/gpucr-fs/restore/diagnosis"
)

// freePorts looks for what has the ports of a checkpoint after a restore has failed with err, and asks for another one
// when it could free them. That is done once.
func (r *restoring) freePorts(ctx context.Context, err error, images string) error {
	if ctx.Err() != nil || !restore.PortTaken(err) {
		return err
	}
	what, problem := restore.FreePorts(ctx, os.DirFS(images), r.args, func(s string) { r.a.note("%s", s) })
	switch known := (*diagnosis.Failure)(nil); {
	case errors.As(problem, &known):
		return problem // it says more than err
	case problem != nil:
		return errors.Join(err, problem)
	case what == "" || r.freed:
		return err
	}
	r.freed = true
	return fmt.Errorf("%s, %w", what, client.ErrAgain)
}
