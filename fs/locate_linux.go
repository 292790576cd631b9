package fs

import (
	"path/filepath"
	"strings"
)

// Place is where a path lies in a mount of this file system.
type Place struct {
	Store string // its folder
	Mount string // mount point
	// Checkpoint is the name below .checkpoints, "" for the root's.
	Checkpoint string
}

// Locate tells of which mounted store and checkpoint dir is the image directory; false where it is not one, but a directory of another file system or one within images.
func Locate(dir string) (Place, bool, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return Place{}, false, err
	}
	all, err := mounts()
	if err != nil {
		return Place{}, false, err
	}
	for point := dir; ; point = filepath.Dir(point) {
		if top, ok := topMount(all, point); ok {
			if top.fstype != fsType {
				return Place{}, false, nil
			}
			rest := strings.TrimPrefix(strings.TrimPrefix(dir, point), "/")
			name, below := strings.CutPrefix(rest, topName+"/")
			p := Place{Store: top.source, Mount: point, Checkpoint: name}
			return p, rest == "" || below && name != "" && !strings.Contains(name, "/"), nil
		}
		if point == "/" {
			return Place{}, false, nil
		}
	}
}
