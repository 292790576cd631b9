package fs

import (
	"context"
	"syscall"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// scratchFile is the node of anything in scratch but a directory.
type scratchFile struct {
	node
	n *scratchNode
}

var (
	_ gofs.NodeOpener     = (*scratchFile)(nil)
	_ gofs.NodeGetattrer  = (*scratchFile)(nil)
	_ gofs.NodeSetattrer  = (*scratchFile)(nil)
	_ gofs.NodeReadlinker = (*scratchFile)(nil)
)

func (f *scratchFile) Open(_ context.Context, flags uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	return f.s.openScratch(f.n, flags)
}

func (s *Server) openScratch(n *scratchNode, flags uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	if errno := n.open(flags&syscall.O_TRUNC != 0); errno != 0 {
		return nil, 0, errno
	}
	h := &scratchHandle{s: s, n: n}
	s.opened(h)
	return h, fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_NOFLUSH, 0
}

func (f *scratchFile) Getattr(_ context.Context, _ gofs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	f.n.fill(&out.Attr)
	return 0
}

func (f *scratchFile) Setattr(_ context.Context, _ gofs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if size, ok := in.GetSize(); ok {
		if errno := f.n.truncate(int64(size)); errno != 0 {
			return errno
		}
	}
	f.n.setattr(in)
	f.n.fill(&out.Attr)
	return 0
}

func (f *scratchFile) Readlink(context.Context) ([]byte, syscall.Errno) {
	if f.n.typ != syscall.S_IFLNK {
		return nil, syscall.EINVAL
	}
	return []byte(f.n.target), 0
}

// scratchHandle is an open scratch file.
type scratchHandle struct {
	s *Server
	n *scratchNode
}

var (
	_ gofs.FileReader    = (*scratchHandle)(nil)
	_ gofs.FileWriter    = (*scratchHandle)(nil)
	_ gofs.FileAllocater = (*scratchHandle)(nil)
	_ gofs.FileFsyncer   = (*scratchHandle)(nil)
	_ gofs.FileReleaser  = (*scratchHandle)(nil)
)

func (h *scratchHandle) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	n, errno := h.n.readAt(dest, off)
	if errno != 0 {
		return nil, errno
	}
	return fuse.ReadResultData(dest[:n]), 0
}

func (h *scratchHandle) Write(_ context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	n, errno := h.n.writeAt(data, off)
	return uint32(n), errno
}

func (h *scratchHandle) Allocate(_ context.Context, off, size uint64, mode uint32) syscall.Errno {
	switch mode {
	case unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE:
		return h.n.punch(int64(off), int64(size))
	case unix.FALLOC_FL_KEEP_SIZE:
		return 0
	case 0:
		h.n.mu.Lock()
		grow := int64(off+size) > h.n.size
		h.n.mu.Unlock()
		if grow {
			return h.n.truncate(int64(off + size))
		}
		return 0
	}
	return syscall.EOPNOTSUPP
}

func (h *scratchHandle) Fsync(context.Context, uint32) syscall.Errno { return 0 }

func (h *scratchHandle) Release(context.Context) syscall.Errno {
	h.s.released(h)
	return errnoOf(h.close())
}

func (h *scratchHandle) close() error {
	h.n.close()
	return nil
}
