package server

import (
	"context"
	"errors"
)

// Fill puts the contents of a plan's BOs in place and verifies as Options.Verify says. Errors that concern
// a BO are an *Error; the report holds then what was done so far.
func Fill(ctx context.Context, src Source, plan Plan, opts Options) (Report, error) {
	return Report{}, errors.New("not built yet")
}

// Read writes the contents of a plan's BOs to the image files they name, each with its header. The BOs of a
// file must follow each other without a gap from byte 8 on.
func Read(ctx context.Context, plan Plan, sink Sink, opts Options) (Report, error) {
	return Report{}, errors.New("not built yet")
}

// Verify reads BOs back and compares them with the image files.
func Verify(ctx context.Context, src Source, plan Plan, opts Options) (Report, error) {
	return Report{}, errors.New("not built yet")
}
