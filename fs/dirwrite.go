package fs

import (
	"context"
	"path"
	"syscall"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index"
)

var (
	_ gofs.NodeCreater   = (*dirNode)(nil)
	_ gofs.NodeMkdirer   = (*dirNode)(nil)
	_ gofs.NodeMknoder   = (*dirNode)(nil)
	_ gofs.NodeSymlinker = (*dirNode)(nil)
	_ gofs.NodeLinker    = (*dirNode)(nil)
	_ gofs.NodeUnlinker  = (*dirNode)(nil)
	_ gofs.NodeRmdirer   = (*dirNode)(nil)
	_ gofs.NodeRenamer   = (*dirNode)(nil)
)

// nameMax is the longest name that can be made, as statfs tells.
const nameMax = 255

// place is where something new goes: into the draft img at path p, or, without img, into scratch.
type place struct {
	img *image
	p   string
	scr *scratchNode
}

// place decides where a new file of this name goes. flags and perm as for byProduct; reg is set for regular files and
// symlinks, the things that can be by-products.
func (n *dirNode) place(name string, reg bool, flags, perm uint32) (place, syscall.Errno) {
	if n.v.root && n.top() && name == topName {
		return place{}, syscall.EEXIST
	}
	if len(name) > nameMax {
		return place{}, syscall.ENAMETOOLONG
	}
	img, dir, err := n.content()
	if err != nil {
		return place{}, errnoOf(err)
	}
	if img != nil {
		p := path.Join(dir, name)
		if img.openDraft() != nil {
			if !reg || !byProduct(name, flags, perm) {
				return place{img: img, p: p}, 0
			}
		} else if dir == "." && name == parentLink {
			return place{}, syscall.EROFS
		} else if _, err := img.stat(p); err == nil {
			return place{}, syscall.EEXIST
		}
	}
	if reg && imageName(name) {
		n.s.log.Warn(
			"refused an image outside of a new checkpoint", "file", name, "hint",
			"dump into a directory made in "+topName+", or mount with a new checkpoint as the root",
		)
		return place{}, syscall.EROFS
	}
	scr, errno := n.scratch(true)
	return place{scr: scr}, errno
}

func (n *dirNode) Create(
	ctx context.Context,
	name string,
	flags, mode uint32,
	out *fuse.EntryOut,
) (*gofs.Inode, gofs.FileHandle, uint32, syscall.Errno) {
	at, errno := n.place(name, true, flags, mode)
	if errno != 0 {
		return nil, nil, 0, errno
	}
	if at.img == nil {
		ch, errno := n.newScratch(ctx, at.scr, name, syscall.S_IFREG, mode, byProduct(name, flags, mode))
		if errno != 0 {
			return nil, nil, 0, errno
		}
		h, ff, errno := n.s.openScratch(ch, flags)
		return n.scratchInode(ctx, ch, out), h, ff, errno
	}
	var f *index.DraftFile
	node, err := n.newContent(ctx, at, out, func(d *index.Draft) (err error) {
		f, err = d.Create(at.p, permOf(mode))
		return err
	})
	if index.ClassOf(err) == index.Exists && flags&syscall.O_EXCL == 0 {
		return nil, nil, 0, syscall.ESTALE // made meanwhile by another way in: the kernel looks again
	}
	if err != nil {
		return nil, nil, 0, n.failed("create", at, err)
	}
	return node, n.s.newDraftHandle(node.Operations().(*fileNode).e, f, flags), draftFlags, 0
}

// failed logs what the store refused in a draft.
func (n *dirNode) failed(op string, at place, err error) syscall.Errno {
	errno := errnoOf(err)
	if errno == syscall.EIO || errno == syscall.ENOSPC {
		n.s.log.Error(op+" in a draft failed", "checkpoint", at.img.name, "file", at.p, "error", err)
	}
	return errno
}

// newContent makes something in a draft and gives its node.
func (n *dirNode) newContent(
	ctx context.Context,
	at place,
	out *fuse.EntryOut,
	make func(d *index.Draft) error,
) (*gofs.Inode, error) {
	var fi index.FileInfo
	var e *entry
	err := at.img.change(func(d *index.Draft) (err error) {
		if err = make(d); err != nil {
			return err
		}
		if fi, err = d.Stat(at.p); err == nil {
			e, err = at.img.entryLocked(fi)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	n.s.fillContent(&out.Attr, fi)
	return n.contentInode(ctx, e), nil
}

// newScratch makes a scratch node owned by the caller.
func (n *dirNode) newScratch(
	ctx context.Context,
	dir *scratchNode,
	name string,
	typ, perm uint32,
	byProduct bool,
) (*scratchNode, syscall.Errno) {
	n.s.scratch.makeRoom(nodeCost + grain)
	uid, gid := n.s.uid, n.s.gid
	if c, ok := fuse.FromContext(ctx); ok {
		uid, gid = c.Uid, c.Gid
	}
	ch, errno := n.s.scratch.newNode(typ, perm, uid, gid, byProduct)
	if errno != 0 {
		return nil, errno
	}
	if errno := dir.add(name, ch); errno != 0 {
		ch.drop()
		return nil, errno
	}
	return ch, 0
}

func (n *dirNode) Mkdir(
	ctx context.Context,
	name string,
	mode uint32,
	out *fuse.EntryOut,
) (*gofs.Inode, syscall.Errno) {
	at, errno := n.place(name, false, 0, mode)
	if errno != 0 {
		return nil, errno
	}
	if at.img == nil {
		ch, errno := n.newScratch(ctx, at.scr, name, syscall.S_IFDIR, mode, false)
		if errno != 0 {
			return nil, errno
		}
		return n.scratchInode(ctx, ch, out), 0
	}
	node, err := n.newContent(ctx, at, out, func(d *index.Draft) error { return d.Mkdir(at.p, permOf(mode)) })
	return node, n.failed("mkdir", at, err)
}

// Mknod makes sockets and fifos, always in scratch: --stream has its sockets in the image directory. Devices are
// refused.
func (n *dirNode) Mknod(
	ctx context.Context,
	name string,
	mode, _ uint32,
	out *fuse.EntryOut,
) (*gofs.Inode, syscall.Errno) {
	switch typ := mode & syscall.S_IFMT; typ {
	case syscall.S_IFREG, 0:
		node, h, _, errno := n.Create(ctx, name, syscall.O_WRONLY|syscall.O_EXCL, mode, out)
		if errno == 0 {
			h.(gofs.FileReleaser).Release(ctx)
		}
		return node, errno
	case syscall.S_IFSOCK, syscall.S_IFIFO:
		scr, errno := n.scratch(true)
		if errno != 0 {
			return nil, errno
		}
		ch, errno := n.newScratch(ctx, scr, name, typ, mode, byProduct(name, 0, mode))
		if errno != 0 {
			return nil, errno
		}
		return n.scratchInode(ctx, ch, out), 0
	}
	return nil, syscall.EPERM
}

// Symlink makes a symlink. In the top directory of a draft, "parent" is the link to the checkpoint that an incremental
// dump builds on.
func (n *dirNode) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (*gofs.Inode, syscall.Errno) {
	at, errno := n.place(name, true, 0, 0)
	if errno != 0 {
		return nil, errno
	}
	if at.img == nil {
		ch, errno := n.newScratch(ctx, at.scr, name, syscall.S_IFLNK, 0o777, false)
		if errno != 0 {
			return nil, errno
		}
		ch.target = target
		return n.scratchInode(ctx, ch, out), 0
	}
	if at.p != parentLink {
		node, err := n.newContent(ctx, at, out, func(d *index.Draft) error { return d.Symlink(target, at.p) })
		return node, n.failed("symlink", at, err)
	}
	if at.img.parentName() != "" {
		return nil, syscall.EEXIST
	}
	name, err := n.v.parentOf(target)
	if err == nil {
		err = at.img.setParent(name)
	}
	if err != nil {
		n.s.log.Error(
			"refused a parent link", "checkpoint", at.img.name, "target", target, "error", err, "hint",
			"the parent must be a sealed checkpoint of this store, as in ../NAME",
		)
		return nil, errnoOf(err)
	}
	return n.parent(ctx, at.img, out), 0
}

// Link works within scratch only: checkpoints have no hard links.
func (n *dirNode) Link(
	_ context.Context,
	target gofs.InodeEmbedder,
	name string,
	out *fuse.EntryOut,
) (*gofs.Inode, syscall.Errno) {
	t, ok := target.(*scratchFile)
	if !ok {
		return nil, syscall.EPERM
	}
	at, errno := n.place(name, true, 0, 0)
	if errno != 0 {
		return nil, errno
	}
	if at.img != nil {
		return nil, syscall.EPERM
	}
	t.n.mu.Lock()
	t.n.nlink++
	t.n.mu.Unlock()
	if errno := at.scr.add(name, t.n); errno != 0 {
		t.n.unlink()
		return nil, errno
	}
	t.n.fill(&out.Attr)
	return t.EmbeddedInode(), 0
}

func (n *dirNode) Unlink(_ context.Context, name string) syscall.Errno { return n.remove(name, false) }

func (n *dirNode) Rmdir(_ context.Context, name string) syscall.Errno { return n.remove(name, true) }

func (n *dirNode) remove(name string, isDir bool) syscall.Errno {
	img, dir, err := n.content()
	if err != nil {
		return errnoOf(err)
	}
	if n.v.root && n.top() && name == topName {
		return syscall.EBUSY
	}
	if img != nil {
		p := path.Join(dir, name)
		if p == parentLink && img.parentName() != "" {
			return errnoOf(img.setParent(""))
		}
		fi, err := img.stat(p)
		if err == nil {
			return n.removeContent(img, fi, p, isDir)
		}
		if errno := errnoOf(err); errno != syscall.ENOENT {
			return errno
		}
	}
	scr, _ := n.scratch(false)
	if scr == nil {
		return syscall.ENOENT
	}
	return scr.remove(name, isDir)
}

func (n *dirNode) removeContent(img *image, fi index.FileInfo, p string, isDir bool) syscall.Errno {
	if img.openDraft() == nil {
		return syscall.EROFS
	}
	if fi.Mode.IsDir() != isDir {
		if isDir {
			return syscall.ENOTDIR
		}
		return syscall.EISDIR
	}
	if isDir {
		if errno := n.emptyDir(img, fi); errno != 0 {
			return errno
		}
	}
	return errnoOf(img.remove(p))
}

// emptyDir says ENOTEMPTY unless neither layer of a directory of a draft has anything.
func (n *dirNode) emptyDir(img *image, fi index.FileInfo) syscall.Errno {
	l, err := img.list(fi.Path)
	if err != nil {
		return errnoOf(err)
	}
	e, err := img.entry(fi)
	if err != nil {
		return errnoOf(err)
	}
	scr, _ := n.v.scratchDir(e.ino, false)
	if len(l) > 0 || scr != nil && !scr.empty() {
		return syscall.ENOTEMPTY
	}
	return 0
}

// asDir gives the directory behind a node.
func asDir(e gofs.InodeEmbedder) (*dirNode, bool) {
	switch d := e.(type) {
	case *dirNode:
		return d, true
	case *topNode:
		return &d.dirNode, true
	}
	return nil, false
}

// Rename moves content within a draft, and scratch within scratch. What would change a file's kind is EXDEV, upon which
// mv copies.
func (n *dirNode) Rename(
	_ context.Context,
	name string,
	newParent gofs.InodeEmbedder,
	newName string,
	flags uint32,
) syscall.Errno {
	to, ok := asDir(newParent)
	if !ok {
		return syscall.EXDEV
	}
	if flags&^uint32(unix.RENAME_NOREPLACE) != 0 {
		return syscall.EINVAL
	}
	if n.v.root && n.top() && name == topName || to.v.root && to.top() && newName == topName {
		return syscall.EBUSY
	}
	img, dir, err := n.content()
	if err != nil {
		return errnoOf(err)
	}
	if img != nil {
		from := path.Join(dir, name)
		if from == parentLink && img.parentName() != "" {
			return syscall.EPERM
		}
		fi, err := img.stat(from)
		if err == nil {
			return n.renameContent(img, fi, from, to, newName)
		}
		if errno := errnoOf(err); errno != syscall.ENOENT {
			return errno
		}
	}
	return n.renameScratch(name, to, newName)
}

func (n *dirNode) renameContent(img *image, fi index.FileInfo, from string, to *dirNode, newName string) syscall.Errno {
	if img.openDraft() == nil {
		return syscall.EROFS
	}
	toImg, toDir, err := to.content()
	if err != nil {
		return errnoOf(err)
	}
	if toImg != img || to.v != n.v {
		return syscall.EXDEV
	}
	dest := path.Join(toDir, newName)
	if dest == from {
		return 0
	}
	if dest == parentLink {
		return syscall.EPERM
	}
	old, err := img.stat(dest)
	if err == nil && old.Mode.IsDir() {
		if errno := to.emptyDir(img, old); errno != 0 {
			return errno
		}
		if err := img.remove(dest); err != nil {
			return errnoOf(err)
		}
	}
	err = img.change(func(d *index.Draft) error {
		if err := d.Rename(from, dest); err != nil {
			return err
		}
		img.renamedLocked(from, dest)
		return nil
	})
	if err != nil {
		return errnoOf(err)
	}
	if scr, _ := to.scratch(false); scr != nil {
		scr.remove(newName, fi.Mode.IsDir())
	}
	return 0
}

func (n *dirNode) renameScratch(name string, to *dirNode, newName string) syscall.Errno {
	src, _ := n.scratch(false)
	if src == nil {
		return syscall.ENOENT
	}
	ch := src.child(name)
	if ch == nil {
		return syscall.ENOENT
	}
	reg := ch.typ == syscall.S_IFREG || ch.typ == syscall.S_IFLNK
	at, errno := to.place(newName, reg, 0, 0)
	if errno != 0 {
		if errno == syscall.EEXIST {
			return syscall.EROFS
		}
		return errno
	}
	if at.img != nil && ch.typ != syscall.S_IFSOCK && ch.typ != syscall.S_IFIFO {
		return syscall.EXDEV
	}
	dst := at.scr
	if dst == nil {
		if dst, errno = to.scratch(true); errno != 0 {
			return errno
		}
	}
	if dst.child(newName) == ch { // two names of one file: rename(2) does nothing
		return 0
	}
	isDir := ch.typ == syscall.S_IFDIR
	if dst.child(newName) != nil {
		if errno := dst.remove(newName, isDir); errno != 0 {
			return errno
		}
	}
	if errno := dst.add(newName, ch); errno != 0 {
		return errno
	}
	src.forget(name)
	return 0
}
