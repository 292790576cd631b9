package reading

import (
	"path"
	"strings"
)

// Parent gives the checkpoint that an incremental dump builds on; nil where there is none. It is found by its id: its
// name may be another checkpoint's by now.
func (c *Checkpoint) Parent() (*Checkpoint, error) {
	r, pb := c.s.roots.Parent(c.r)
	if r == nil {
		return nil, nil
	}
	return c.s.load(r, pb)
}

// Relinked gives the target of the link at p in a checkpoint whose parent has this name now. The link of CRIU's images
// to those of the parent, in the top folder or in that of podman's images, tells the name that the parent had. One
// that stays in the checkpoint is as it was.
func Relinked(p, target, parent string) string {
	if p != "parent" && p != "checkpoint/parent" {
		return target
	}
	up := strings.Repeat("../", strings.Count(p, "/")+1)
	rest, out := strings.CutPrefix(target, up)
	name, below, _ := strings.Cut(rest, "/")
	if !out || name == ".." || parent == "" {
		return target
	}
	return path.Join(up, parent, below)
}
