package fs

import (
	"context"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// warnOfUserNamespace tells, when CRIU looks for the description of a user namespace, that the restore will fail: its
// tasks read the images from within that namespace, and the kernel refuses them before it asks this server. CRIU says
// no more than "Permission denied".
func (n *dirNode) warnOfUserNamespace(ctx context.Context, checkpoint, name string) {
	if !strings.HasPrefix(name, "userns-") || n.s.dir == "" || n.s.opts.AllowOther {
		return
	}
	c, ok := fuse.FromContext(ctx)
	if !ok {
		return
	}
	if criu, _ := calledByCRIU(c.Pid); criu { // where it is not known there is one warning less
		n.s.log.Warn(
			"criu cannot restore a user namespace from this mount: mount with --allow-other, or use gpucr-fs restore",
			"checkpoint", checkpoint, "dir", n.s.dir,
		)
	}
}
