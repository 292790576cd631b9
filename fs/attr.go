package fs

import (
	iofs "io/fs"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/gpucr/gpucr-fs/index"
)

// keep is how long the kernel may hold on to names and attributes that cannot change.
const keep = time.Hour

// fillContent describes a file, directory or symlink of a checkpoint. Owner is the daemon's user: the store records
// none.
func (s *Server) fillContent(out *fuse.Attr, fi index.FileInfo) {
	out.Mode = typeOf(fi.Mode) | uint32(fi.Mode.Perm())
	out.Size = uint64(fi.Size)
	out.Blksize = 4096
	out.Blocks = uint64((fi.Size - fi.Zero + 511) / 512)
	out.Nlink = 1
	out.Owner = fuse.Owner{Uid: s.uid, Gid: s.gid}
	if fi.Mode.IsDir() {
		out.Size, out.Blocks, out.Nlink = 4096, 8, 2
	}
	t := fi.ModTime
	if t.IsZero() {
		t = s.started
	}
	out.SetTimes(&t, &t, &t)
}

func (n *scratchNode) fill(out *fuse.Attr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	out.Ino = n.ino
	out.Mode = n.typ | n.perm
	size, blocks, mtime := n.statLocked()
	out.Size, out.Blocks = uint64(size), uint64(blocks)
	out.Blksize = 4096
	ctime := n.ctime
	if mtime.After(ctime) {
		ctime = mtime
	}
	switch n.typ {
	case syscall.S_IFDIR:
		out.Size, out.Blocks = 4096, 8
	case syscall.S_IFLNK:
		out.Size = uint64(len(n.target))
	}
	out.Nlink = n.nlink
	out.Rdev = n.rdev
	out.Owner = fuse.Owner{Uid: n.uid, Gid: n.gid}
	out.SetTimes(&n.atime, &mtime, &ctime)
}

// setattr changes everything but the size.
func (n *scratchNode) setattr(in *fuse.SetAttrIn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if mode, ok := in.GetMode(); ok {
		n.perm = mode & 0o7777
	}
	if uid, ok := in.GetUID(); ok {
		n.uid = uid
	}
	if gid, ok := in.GetGID(); ok {
		n.gid = gid
	}
	if t, ok := in.GetATime(); ok {
		n.atime = t
	}
	if t, ok := in.GetMTime(); ok {
		n.mtime = t
		if n.file != nil {
			if _, _, now, err := n.file.stat(); err == nil {
				n.file.told = now
			}
		}
	}
	n.ctime = time.Now()
}

// dirInfo describes an image directory of which nothing is known.
func dirInfo(t time.Time) index.FileInfo {
	return index.FileInfo{Path: ".", Mode: iofs.ModeDir | 0o755, ModTime: t}
}
