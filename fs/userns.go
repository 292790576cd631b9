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
	if c, ok := fuse.FromContext(ctx); ok && calledByCRIU(c.Pid) {
		n.s.log.Warn(
			"criu cannot restore a user namespace from this mount: mount with --allow-other, or use gpucr-fs restore",
			"checkpoint", checkpoint, "dir", n.s.dir,
		)
	}
}
