package fs

import (
	"context"
	"errors"
	"syscall"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index"
)

// topName is the directory in the root that shows every checkpoint.
const topName = ".checkpoints"

// node is what all nodes have in common.
type node struct {
	gofs.Inode
	s *Server
}

var (
	_ gofs.NodeAccesser = (*node)(nil)
	_ gofs.NodeStatfser = (*node)(nil)
)

// Access leaves permissions to the kernel: it asks no more after the first ENOSYS, and then goes by mode bits where
// default_permissions is set.
func (n *node) Access(context.Context, uint32) syscall.Errno { return syscall.ENOSYS }

// Statfs describes the file system that holds the store.
func (n *node) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	var st unix.Statfs_t
	if err := unix.Statfs(n.s.store.Dir(), &st); err != nil {
		return errnoOf(err)
	}
	out.Blocks, out.Bfree, out.Bavail = st.Blocks, st.Bfree, st.Bavail
	out.Files, out.Ffree = st.Files, st.Ffree
	out.Bsize, out.Frsize = uint32(st.Bsize), uint32(st.Frsize)
	out.NameLen = nameMax
	return 0
}

// linkNode is a symlink of a checkpoint.
type linkNode struct {
	node
	e *entry
}

var (
	_ gofs.NodeReadlinker = (*linkNode)(nil)
	_ gofs.NodeGetattrer  = (*linkNode)(nil)
	_ gofs.NodeSetattrer  = (*linkNode)(nil)
)

func (n *linkNode) Readlink(context.Context) ([]byte, syscall.Errno) {
	fi, err := n.e.stat()
	return []byte(index.Relinked(fi.Path, fi.Target, n.e.img.parentName())), errnoOf(err)
}

func (n *linkNode) Getattr(_ context.Context, _ gofs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	fi, err := n.e.stat()
	if err != nil {
		return errnoOf(err)
	}
	n.s.fillContent(&out.Attr, fi)
	return 0
}

func (n *linkNode) Setattr(_ context.Context, _ gofs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if errno := n.s.setContentAttr(n.e, in); errno != 0 {
		return errno
	}
	return n.Getattr(context.Background(), nil, out)
}

// parentNode is the symlink by which an incremental dump names the one before it. The store keeps the name only; how
// the link reads depends on where it is seen.
type parentNode struct {
	node
	v      *view
	img    *image
	itself bool // it leads to img, see Instead
}

// leadsTo gives the checkpoint that the link leads to, "" where it is gone.
func (n *parentNode) leadsTo() string {
	if n.itself {
		return n.img.name
	}
	return n.img.parentName()
}

var (
	_ gofs.NodeReadlinker = (*parentNode)(nil)
	_ gofs.NodeGetattrer  = (*parentNode)(nil)
	_ gofs.NodeSetattrer  = (*parentNode)(nil)
)

func (n *parentNode) Readlink(context.Context) ([]byte, syscall.Errno) {
	name := n.leadsTo()
	if name == "" {
		return nil, syscall.ENOENT
	}
	return []byte(n.v.parentTarget(name)), 0
}

func (n *parentNode) Getattr(_ context.Context, _ gofs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	n.fill(&out.Attr)
	return 0
}

func (n *parentNode) fill(out *fuse.Attr) {
	out.Mode = syscall.S_IFLNK | 0o777
	out.Size = uint64(len(n.v.parentTarget(n.leadsTo())))
	out.Blksize = 4096
	out.Nlink = 1
	out.Owner = fuse.Owner{Uid: n.s.uid, Gid: n.s.gid}
	out.SetTimes(&n.s.started, &n.s.started, &n.s.started)
}

// Setattr takes the times that copying tools set and forgets them: the store has no place for them.
func (n *parentNode) Setattr(_ context.Context, _ gofs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if n.img.openDraft() == nil {
		return syscall.EROFS
	}
	n.fill(&out.Attr)
	return 0
}

// setContentAttr changes permissions and mtime of an entry of a draft.
func (s *Server) setContentAttr(e *entry, in *fuse.SetAttrIn) syscall.Errno {
	if e.img.openDraft() == nil {
		return syscall.EROFS
	}
	if uid, ok := in.GetUID(); ok && uid != s.uid {
		return syscall.EPERM
	}
	if gid, ok := in.GetGID(); ok && gid != s.gid {
		return syscall.EPERM
	}
	var a index.Attr
	if mode, ok := in.GetMode(); ok {
		perm := permOf(mode)
		a.Perm = &perm
	}
	if t, ok := in.GetMTime(); ok {
		ns, _ := index.TimeNS(t) // cut to what can be kept, as file systems do
		a.ModTime = &ns
	}
	if a == (index.Attr{}) {
		return 0
	}
	err := e.inDraft(func(d *index.Draft, p string) error {
		if p == "." { // the store keeps nothing of the image directory itself
			return nil
		}
		return d.SetAttr(p, a)
	})
	if errors.Is(err, syscall.ENOENT) { // unlinked
		return 0
	}
	return errnoOf(err)
}
