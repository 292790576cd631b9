package fs

import (
	"context"
	"syscall"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// topNode is .checkpoints. Its own view has no image: what is not a checkpoint there is scratch.
type topNode struct{ dirNode }

var (
	_ gofs.NodeLookuper       = (*topNode)(nil)
	_ gofs.NodeMkdirer        = (*topNode)(nil)
	_ gofs.NodeRmdirer        = (*topNode)(nil)
	_ gofs.NodeRenamer        = (*topNode)(nil)
	_ gofs.NodeOpendirHandler = (*topNode)(nil)
)

func (n *topNode) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*gofs.Inode, syscall.Errno) {
	img, err := n.s.cat.image(name)
	switch errno := errnoOf(err); errno {
	case 0:
		return n.show(ctx, img, out)
	case syscall.ENOENT:
		return n.dirNode.Lookup(ctx, name, out)
	default:
		n.s.log.Error("look-up failed", "checkpoint", name, "error", err)
		return nil, errno
	}
}

// show gives the directory of a checkpoint. It does not load it: listing a thousand of them reads no manifest.
func (n *topNode) show(ctx context.Context, img *image, out *fuse.EntryOut) (*gofs.Inode, syscall.Errno) {
	d := &dirNode{node: node{s: n.s}, v: n.s.viewOf(img)}
	fi := dirInfo(n.s.started)
	if img.openDraft() != nil || img.loaded() {
		var err error
		if fi, err = img.stat("."); err != nil {
			return nil, errnoOf(err)
		}
	}
	n.s.fillContent(&out.Attr, fi)
	return n.NewInode(ctx, d, gofs.StableAttr{Mode: syscall.S_IFDIR, Ino: img.base | idxDir}), 0
}

// Mkdir opens a new checkpoint for writing.
func (n *topNode) Mkdir(ctx context.Context, name string, _ uint32, out *fuse.EntryOut) (*gofs.Inode, syscall.Errno) {
	if n.taken(name) {
		return nil, syscall.EEXIST
	}
	img, err := n.s.cat.create(context.Background(), name, nil)
	if err != nil {
		n.s.log.Warn("could not make a checkpoint", "checkpoint", name, "error", err)
		return nil, errnoOf(err)
	}
	return n.show(ctx, img, out)
}

// taken says whether a scratch file has the name.
func (n *topNode) taken(name string) bool {
	scr, _ := n.scratch(false)
	return scr != nil && scr.child(name) != nil
}

// Rmdir gives an empty draft up. Sealed checkpoints are removed with the rm command only.
func (n *topNode) Rmdir(ctx context.Context, name string) syscall.Errno {
	img, err := n.s.cat.image(name)
	if err != nil {
		return n.dirNode.Rmdir(ctx, name)
	}
	d := img.openDraft()
	if d == nil {
		return syscall.EROFS
	}
	if n.s.root.shows(img) {
		return syscall.EBUSY
	}
	l, err := d.ReadDir(".")
	if err != nil {
		return errnoOf(err)
	}
	scr, _ := n.s.viewOf(img).scratchDir(0, false)
	if len(l) > 0 || img.parentName() != "" || scr != nil && !scr.empty() {
		return syscall.ENOTEMPTY
	}
	if err := n.s.cat.abort(img); err != nil {
		return errnoOf(err)
	}
	return 0
}

// Rename moves scratch; checkpoints keep their names.
func (n *topNode) Rename(
	ctx context.Context,
	name string,
	newParent gofs.InodeEmbedder,
	newName string,
	flags uint32,
) syscall.Errno {
	if _, err := n.s.cat.image(name); err == nil {
		return syscall.EPERM
	}
	return n.dirNode.Rename(ctx, name, newParent, newName, flags)
}

func (n *topNode) OpendirHandle(context.Context, uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	return &dirHandle{list: n.entries}, 0, 0
}

func (n *topNode) entries() ([]fuse.DirEntry, syscall.Errno) {
	names, err := n.s.cat.names()
	if err != nil {
		return nil, errnoOf(err)
	}
	out, errno := n.dirNode.entries()
	for _, name := range names {
		if img, err := n.s.cat.image(name); err == nil && !n.taken(name) {
			out = append(out, fuse.DirEntry{Name: name, Mode: syscall.S_IFDIR, Ino: img.base | idxDir})
		}
	}
	return out, errno
}
