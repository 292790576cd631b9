package index

import (
	"errors"
	"path"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/reading"
)

// imageDirs are where CRIU's images lie in what is kept as a checkpoint: in its root, or where podman and the kubelet
// put them.
var imageDirs = []string{".", "checkpoint", "pre-checkpoint"}

// Inventories are the paths at which a checkpoint may have CRIU's inventory, its first image to be read and the last
// one of a dump that must be there.
func Inventories() []string {
	out := make([]string, len(imageDirs))
	for i, dir := range imageDirs {
		out[i] = path.Join(dir, "inventory.img")
	}
	return out
}

// Relinked gives the target of the link at p in a checkpoint whose parent has this name now; see [reading.Relinked].
func Relinked(p, target, parent string) string { return reading.Relinked(p, target, parent) }

// NeedInventory is an error of class Invalid unless stat finds an inventory that holds something: without one it is no
// checkpoint, but a dump that failed or some other folder, and nothing can be restored from it. A draft can be sealed
// whatever it holds; commands that take it from users call this first.
func NeedInventory(op, name string, stat func(p string) (reading.FileInfo, error)) error {
	for _, p := range Inventories() {
		fi, err := stat(p)
		if err == nil && fi.Mode.IsRegular() && fi.Size > 0 {
			return nil
		}
		if err != nil && fault.ClassOf(err) != fault.NotFound {
			return err
		}
	}
	return &fault.Error{Class: fault.Invalid, Op: op, Checkpoint: name,
		Err: errors.New("it is no checkpoint: neither inventory.img nor checkpoint/inventory.img is in it, which " +
			"criu writes at the end of a dump")}
}
