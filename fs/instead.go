package fs

import (
	"context"
	"syscall"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// Instead has the root, which shows one sealed checkpoint, show other contents for some of its files, by name, and with
// parent a link of that name that leads to the checkpoint as it is. CRIU sees an incremental dump that way. Call it
// once, before anybody looks into the mount.
func (s *Server) Instead(files map[string][]byte, parent bool) {
	s.root.mu.Lock()
	defer s.root.mu.Unlock()
	s.root.parent = parent
	s.root.instead = make(map[string]*insteadNode, len(files))
	for name, data := range files {
		s.root.instead[name] = &insteadNode{data: data, ino: inoInstead | uint64(len(s.root.instead)+1)}
	}
}

// insteadOf gives what is shown in place of a file.
func (v *view) insteadOf(name string) (file *insteadNode, parent bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.instead[name], name == parentLink && v.parent
}

// insteadNode is a file that is shown in place of another one.
type insteadNode struct {
	data []byte
	ino  uint64
}

// insteadFile is its inode.
type insteadFile struct {
	node
	n *insteadNode
}

var (
	_ gofs.NodeOpener    = (*insteadFile)(nil)
	_ gofs.NodeReader    = (*insteadFile)(nil)
	_ gofs.NodeGetattrer = (*insteadFile)(nil)
)

func (n *insteadFile) fill(out *fuse.Attr) {
	out.Mode, out.Nlink = syscall.S_IFREG|0o444, 1
	out.Size, out.Blksize, out.Blocks = uint64(len(n.n.data)), 4096, uint64(len(n.n.data)+511)/512
	out.Owner = fuse.Owner{Uid: n.s.uid, Gid: n.s.gid}
	out.SetTimes(&n.s.started, &n.s.started, &n.s.started)
}

func (n *insteadFile) Getattr(_ context.Context, _ gofs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	n.fill(&out.Attr)
	return 0
}

func (n *insteadFile) Open(_ context.Context, flags uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY || flags&syscall.O_TRUNC != 0 {
		return nil, 0, syscall.EROFS
	}
	return nil, fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_NOFLUSH, 0
}

func (n *insteadFile) Read(_ context.Context, _ gofs.FileHandle, dest []byte, off int64) (
	fuse.ReadResult, syscall.Errno,
) {
	data := n.n.data[min(off, int64(len(n.n.data))):]
	return fuse.ReadResultData(data[:min(len(data), len(dest))]), 0
}

// instead gives the inode of name where the root shows something else.
func (n *dirNode) instead(ctx context.Context, img *image, name string, out *fuse.EntryOut) *gofs.Inode {
	file, parent := n.v.insteadOf(name)
	switch {
	case file != nil:
		f := &insteadFile{node: node{s: n.s}, n: file}
		f.fill(&out.Attr)
		return n.NewInode(ctx, f, gofs.StableAttr{Mode: syscall.S_IFREG, Ino: file.ino})
	case parent:
		p := &parentNode{node: node{s: n.s}, v: n.v, img: img, itself: true}
		p.fill(&out.Attr)
		return n.NewInode(ctx, p, gofs.StableAttr{Mode: syscall.S_IFLNK, Ino: inoInstead})
	}
	return nil
}
