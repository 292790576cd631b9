package main

import (
	"context"
	"fmt"

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/park"
	"github.com/gpucr/gpucr-fs/park/inject"
	"github.com/gpucr/gpucr-fs/preflight"
)

// inherited tells why the GPU devices that a process has are not, for certain, those of a process of the tree that it
// descends from.
func inherited(root, pid int) error {
	family, err := cuda.Tree(root)
	if err != nil {
		return err
	}
	_, err = park.Inherited(pid, family)
	return err
}

// letGoRounds is how often it is looked for children that were forked meanwhile.
const letGoRounds = 4

// letGo lets children of CUDA processes close the devices that the preflight has found with them, and those of their
// siblings that came since.
func (d *dumping) letGo(ctx context.Context) error {
	for range letGoRounds {
		if len(d.useless) == 0 {
			return nil
		}
		family, err := cuda.Tree(d.pid)
		if err != nil {
			return err
		}
		for _, pid := range d.useless {
			if _, err := park.LetGo(pid, family, inject.Options{}); err != nil {
				return &codeError{
					exitError,
					"--keep-inherited leaves such devices alone, and criu has to dump them then",
					fmt.Errorf("take the GPU devices of its parent from a child that cannot use them: %w", err),
				}
			}
		}
		r, err := lookAt(ctx, d.pid, &d.args, d.gpu, d.parkRings)
		if err != nil {
			return err
		}
		d.useless = r.Of(preflight.CUDAInherited)
	}
	return nil
}
