package fs

import (
	"context"
	"errors"
	"path"
	"sync"
	"syscall"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/gpucr/gpucr-fs/index"
)

// dirNode is a directory: the top of a view (neither e nor scr), a directory of a checkpoint (e), or one that lives in
// scratch (scr).
type dirNode struct {
	node
	v   *view
	e   *entry
	scr *scratchNode
}

var (
	_ gofs.NodeLookuper       = (*dirNode)(nil)
	_ gofs.NodeGetattrer      = (*dirNode)(nil)
	_ gofs.NodeSetattrer      = (*dirNode)(nil)
	_ gofs.NodeOpendirHandler = (*dirNode)(nil)
	_ gofs.NodeFsyncer        = (*dirNode)(nil)
)

// top says whether this is the image directory of its view.
func (n *dirNode) top() bool { return n.e == nil && n.scr == nil }

// content gives the image that the directory belongs to and its path there; nil where there is only scratch.
func (n *dirNode) content() (*image, string, error) {
	switch {
	case n.scr != nil:
		return nil, "", nil
	case n.e != nil:
		p, ok := n.e.where()
		if !ok {
			return nil, "", syscall.ENOENT
		}
		return n.e.img, p, nil
	}
	img, err := n.v.image()
	return img, ".", err
}

// scratch gives the scratch layer of the directory; nil when it has none and make is not set.
func (n *dirNode) scratch(make bool) (*scratchNode, syscall.Errno) {
	switch {
	case n.scr != nil:
		return n.scr, 0
	case n.e != nil:
		return n.v.scratchDir(n.e.ino, make)
	}
	return n.v.scratchDir(0, make)
}

func (n *dirNode) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*gofs.Inode, syscall.Errno) {
	if n.v.root && n.top() && name == topName {
		n.s.top.fill(&out.Attr)
		return n.s.top.EmbeddedInode(), 0
	}
	img, dir, err := n.content()
	if err != nil {
		return nil, errnoOf(err)
	}
	if img != nil {
		if n.v.root && n.top() {
			if other := n.instead(ctx, img, name, out); other != nil {
				return other, 0
			}
		}
		if dir == "." && name == parentLink && img.parentName() != "" {
			return n.parent(ctx, img, out), 0
		}
		fi, e, err := img.look(path.Join(dir, name))
		if err == nil {
			n.warnOfUserNamespace(ctx, img.name, name)
			return n.found(ctx, fi, e, out)
		}
		if errno := errnoOf(err); errno != syscall.ENOENT {
			n.s.log.Error("look-up failed", "checkpoint", img.name, "file", path.Join(dir, name), "error", err)
			return nil, errno
		}
	}
	scr, _ := n.scratch(false)
	if scr != nil {
		if ch := scr.child(name); ch != nil {
			return n.scratchInode(ctx, ch, out), 0
		}
	}
	return nil, syscall.ENOENT
}

// cacheable says whether the kernel may keep names of this directory.
func (n *dirNode) cacheable(img *image) bool {
	return img != nil && img.openDraft() == nil && !(n.v.follow && n.top())
}

// found gives the node for what a checkpoint has.
func (n *dirNode) found(
	ctx context.Context,
	fi index.FileInfo,
	e *entry,
	out *fuse.EntryOut,
) (*gofs.Inode, syscall.Errno) {
	img := e.img
	sealed := img.openDraft() == nil
	if sealed && fi.Mode.IsRegular() && byProduct(fi.Path, 0, 0) && fi.Size <= shadowMax {
		return n.shadow(ctx, img, fi, out)
	}
	n.s.fillContent(&out.Attr, fi)
	if n.cacheable(img) {
		out.SetEntryTimeout(keep)
	}
	if sealed {
		out.SetAttrTimeout(keep)
	}
	return n.contentInode(ctx, e), 0
}

func (n *dirNode) contentInode(ctx context.Context, e *entry) *gofs.Inode {
	id := gofs.StableAttr{Mode: e.typ, Ino: e.ino}
	switch e.typ {
	case syscall.S_IFDIR:
		if n.v.root {
			id.Ino |= inoRootView
		}
		return n.NewInode(ctx, &dirNode{node: node{s: n.s}, v: n.v, e: e}, id)
	case syscall.S_IFLNK:
		return n.NewInode(ctx, &linkNode{node: node{s: n.s}, e: e}, id)
	}
	return n.NewInode(ctx, &fileNode{node: node{s: n.s}, e: e}, id)
}

func (n *dirNode) scratchInode(ctx context.Context, ch *scratchNode, out *fuse.EntryOut) *gofs.Inode {
	ch.fill(&out.Attr)
	id := gofs.StableAttr{Mode: ch.typ, Ino: ch.ino}
	if ch.typ == syscall.S_IFDIR {
		return n.NewInode(ctx, &dirNode{node: node{s: n.s}, v: n.v, scr: ch}, id)
	}
	ch.mu.Lock()
	ch.known = true
	ch.mu.Unlock()
	return n.NewInode(ctx, &scratchFile{node: node{s: n.s}, n: ch}, id)
}

func (n *dirNode) parent(ctx context.Context, img *image, out *fuse.EntryOut) *gofs.Inode {
	p := &parentNode{node: node{s: n.s}, v: n.v, img: img}
	p.fill(&out.Attr)
	ino := img.base | idxParent
	if n.v.root {
		ino |= inoRootView
	}
	if n.cacheable(img) {
		out.SetEntryTimeout(keep)
	}
	return n.NewInode(ctx, p, gofs.StableAttr{Mode: syscall.S_IFLNK, Ino: ino})
}

// shadowMax bounds the by-products of a sealed checkpoint that can be written over in scratch.
const shadowMax = 16 << 20

// shadow gives a scratch file in place of a by-product that a sealed checkpoint holds, so that a restore can write its
// log where the last one did. It reads as the checkpoint's file until it is written to.
func (n *dirNode) shadow(
	ctx context.Context,
	img *image,
	fi index.FileInfo,
	out *fuse.EntryOut,
) (*gofs.Inode, syscall.Errno) {
	scr, errno := n.scratch(true)
	if errno != 0 {
		return nil, errno
	}
	name := path.Base(fi.Path)
	ch := scr.child(name)
	if ch == nil {
		if ch, errno = n.s.scratch.newNode(syscall.S_IFREG, uint32(fi.Mode.Perm()),
			n.s.uid, n.s.gid, true); errno != 0 {
			return nil, errno
		}
		ch.baseSize, ch.mtime, ch.ctime = fi.Size, fi.ModTime, fi.ModTime
		ch.base = func() ([]byte, syscall.Errno) { return img.readAll(fi.Path) }
		if scr.add(name, ch) != 0 {
			ch.drop()
			if ch = scr.child(name); ch == nil {
				return nil, syscall.ESTALE
			}
		}
	}
	return n.scratchInode(ctx, ch, out), 0
}

func (n *dirNode) Getattr(_ context.Context, _ gofs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	errno := n.fill(&out.Attr)
	if errno == 0 && !n.v.follow && n.scr == nil {
		if img, _, err := n.content(); err == nil && img != nil && img.openDraft() == nil {
			out.SetTimeout(keep)
		}
	}
	return errno
}

func (n *dirNode) fill(out *fuse.Attr) syscall.Errno {
	if n.scr != nil {
		n.scr.fill(out)
		return 0
	}
	img, dir, err := n.content()
	if errors.Is(err, syscall.ENOENT) { // removed, but still someone's working directory
		out.Mode, out.Nlink = syscall.S_IFDIR|0o700, 0
		return 0
	}
	fi := dirInfo(n.s.started)
	if err == nil && img != nil {
		fi, err = img.stat(dir)
	}
	if err != nil {
		return errnoOf(err)
	}
	n.s.fillContent(out, fi)
	return 0
}

func (n *dirNode) Setattr(_ context.Context, _ gofs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if n.scr != nil {
		n.scr.setattr(in)
		return n.fill(&out.Attr)
	}
	img, dir, err := n.content()
	if err != nil {
		return errnoOf(err)
	}
	if img == nil {
		return syscall.EPERM
	}
	e := n.e
	if e == nil {
		e = &entry{img: img, typ: syscall.S_IFDIR, path: dir}
	}
	if errno := n.s.setContentAttr(e, in); errno != 0 {
		return errno
	}
	return n.fill(&out.Attr)
}

func (n *dirNode) Fsync(context.Context, gofs.FileHandle, uint32) syscall.Errno { return 0 }

// entries gives what a listing shows.
func (n *dirNode) entries() ([]fuse.DirEntry, syscall.Errno) {
	out := []fuse.DirEntry{{Name: ".", Mode: syscall.S_IFDIR}, {Name: "..", Mode: syscall.S_IFDIR}}
	have := map[string]bool{}
	add := func(name string, mode uint32, ino uint64) {
		if !have[name] {
			have[name] = true
			out = append(out, fuse.DirEntry{Name: name, Mode: mode, Ino: ino})
		}
	}
	if n.v.root && n.top() {
		add(topName, syscall.S_IFDIR, inoTop)
	}
	img, dir, err := n.content()
	if err != nil {
		return nil, errnoOf(err)
	}
	if img != nil {
		if _, itself := n.v.insteadOf(parentLink); itself && n.top() {
			add(parentLink, syscall.S_IFLNK, inoInstead)
		} else if dir == "." && img.parentName() != "" {
			add(parentLink, syscall.S_IFLNK, img.base|idxParent)
		}
		list, err := img.list(dir)
		if err != nil {
			return nil, errnoOf(err)
		}
		for _, fi := range list {
			e, err := img.entry(fi)
			if err != nil {
				return nil, errnoOf(err)
			}
			add(path.Base(fi.Path), e.typ, e.ino)
		}
	}
	if scr, _ := n.scratch(false); scr != nil {
		for _, name := range scr.list() {
			if ch := scr.child(name); ch != nil {
				add(name, ch.typ, ch.ino)
			}
		}
	}
	return out, 0
}

// OpendirHandle begins a listing. While the root is open, it does not move on to a newer checkpoint.
func (n *dirNode) OpendirHandle(context.Context, uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	h := &dirHandle{list: n.entries}
	if n.v.follow && n.top() {
		if err := n.v.pin(); err != nil {
			return nil, 0, errnoOf(err)
		}
		h.release = n.v.unpin
	}
	return h, 0, 0
}

// dirHandle is an open directory. It shows the directory as it was when it was first read, or last rewound.
type dirHandle struct {
	list    func() ([]fuse.DirEntry, syscall.Errno)
	release func() // nil: nothing to do

	mu      sync.Mutex
	loaded  bool
	entries []fuse.DirEntry
	pos     int
}

var (
	_ gofs.FileReaddirenter = (*dirHandle)(nil)
	_ gofs.FileSeekdirer    = (*dirHandle)(nil)
	_ gofs.FileReleasedirer = (*dirHandle)(nil)
	_ gofs.FileFsyncdirer   = (*dirHandle)(nil)
)

func (h *dirHandle) Readdirent(context.Context) (*fuse.DirEntry, syscall.Errno) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.loaded {
		l, errno := h.list()
		if errno != 0 {
			return nil, errno
		}
		h.entries, h.loaded = l, true
	}
	if h.pos >= len(h.entries) {
		return nil, 0
	}
	e := h.entries[h.pos]
	h.pos++
	e.Off = uint64(h.pos)
	return &e, 0
}

func (h *dirHandle) Seekdir(_ context.Context, off uint64) syscall.Errno {
	h.mu.Lock()
	defer h.mu.Unlock()
	if off == 0 {
		h.loaded = false
	}
	h.pos = int(off)
	return 0
}

func (h *dirHandle) Releasedir(context.Context, uint32) {
	if h.release != nil {
		h.release()
	}
}

func (h *dirHandle) Fsyncdir(context.Context, uint32) syscall.Errno { return 0 }
