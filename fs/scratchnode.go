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

	_ gofs.NodeOnForgetter = (*scratchFile)(nil)
)

func (f *scratchFile) OnForget() { f.n.forgotten() }

func (f *scratchFile) Open(_ context.Context, flags uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	return f.s.openScratch(f.n, flags)
}

func (s *Server) openScratch(n *scratchNode, flags uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	if errno := n.open(flags&syscall.O_TRUNC != 0); errno != 0 {
		return nil, 0, errno
	}
	h := &scratchHandle{s: s, n: n}
	s.opened(h)
	return h, fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_NOFLUSH, 0 // go-fuse drops the first where the kernel passes through
}

func (f *scratchFile) Getattr(_ context.Context, _ gofs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	f.n.fill(&out.Attr)
	return 0
}

func (f *scratchFile) Setattr(
	_ context.Context,
	_ gofs.FileHandle,
	in *fuse.SetAttrIn,
	out *fuse.AttrOut,
) syscall.Errno {
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

	_ gofs.FilePassthroughFder = (*scratchHandle)(nil)
)

// PassthroughFd lets the kernel read and write a by-product's contents by itself. It is the same for all handles of a
// file, as the kernel demands. Other files are written through the server, which holds them to the bound.
func (h *scratchHandle) PassthroughFd() (int, bool) {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	if h.n.file == nil || !h.n.byProduct {
		return 0, false
	}
	return h.n.file.fd, true
}

func (h *scratchHandle) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	n, errno := h.n.readAt(dest, off)
	if errno != 0 {
		return nil, errno
	}
	return fuse.ReadResultData(dest[:n]), 0
}

func (h *scratchHandle) Write(_ context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	if !h.n.byProduct {
		h.n.p.makeRoom(int64(len(data)) + grain)
	}
	n, errno := h.n.writeAt(data, off)
	return uint32(n), errno
}

func (h *scratchHandle) Allocate(_ context.Context, off, length uint64, mode uint32) syscall.Errno {
	switch mode {
	case unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE:
		return h.n.punch(int64(off), int64(length))
	case unix.FALLOC_FL_KEEP_SIZE:
		return 0
	case 0:
		h.n.mu.Lock()
		size, _, _ := h.n.statLocked()
		h.n.mu.Unlock()
		if int64(off+length) > size {
			return h.n.truncate(int64(off + length))
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
