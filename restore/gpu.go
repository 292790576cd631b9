package restore

import "context"

// GPU moves the state of GPUs that CRIU cannot see into memory that it can, and back.
type GPU interface {
	// Prepare stops the GPU work of root and all its descendants and moves their state into host memory. undo lets them go on; it is called when the dump
	// failed or leaves them running, and may be nil where nothing was done.
	Prepare(ctx context.Context, root int) (undo func(context.Context) error, err error)
	// Resume moves the state back for root and all its descendants, and tells whether one had any. Their memory may still be on its way.
	Resume(ctx context.Context, root int) (used bool, err error)
}
