package kfdsim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// Inode numbers tell the shim, and the simulator itself, what a file stands
// for: a tag, the kind and a number (render minor, or the dmabuf's).
const (
	inoTag      = 0x4b464453 << 32 // "KFDS"
	inoTagMask  = 0xffffffff << 32
	inoKindMask = 0xf << 28
	inoNumMask  = 1<<28 - 1

	inoKFD    = inoTag | 1<<28
	inoRender = inoTag | 2<<28
	inoDmabuf = inoTag | 3<<28
)

// Requests that only the simulator's own helpers issue (kfdsim.h).
const (
	iocIdentify abi.Request = 0x80087e01 // out: u64, number of the open file
	iocClaim    abi.Request = 0xc0307e02 // token → handle for open_by_handle_at
	iocDrop     abi.Request = 0x40047e03 // token no longer needed
)

// openFile is one open file description of a device file.
type openFile struct {
	sim  *Sim
	id   uint64
	back int // passthrough descriptor, -1 for none

	proc *kfdProcess // /dev/kfd
	drm  *drmFile    // a render node
	buf  *dmabuf     // a dmabuf
}

var (
	_ fs.FilePassthroughFder = (*openFile)(nil)
	_ fs.FileIoctler         = (*openFile)(nil)
	_ fs.FileFlusher         = (*openFile)(nil)
	_ fs.FileReleaser        = (*openFile)(nil)
	_ fs.NodeOpener          = (*devNode)(nil)
	_ fs.NodeGetattrer       = (*devNode)(nil)
	_ fs.NodeLookuper        = (*dmabufDir)(nil)
)

// devNode is a device file: kfd when gpu and buf are nil.
type devNode struct {
	fs.Inode
	sim *Sim
	gpu *gpu
	buf *dmabuf
}

// Open makes the object behind a new open file description.
func (n *devNode) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	c, ok := fuse.FromContext(ctx)
	if !ok {
		return nil, 0, syscall.EIO
	}
	who := caller{tid: int(c.Pid)}
	f := &openFile{sim: n.sim, back: -1}
	s := n.sim
	var errno syscall.Errno
	var open uint32
	switch {
	case n.buf != nil:
		errno = s.openDmabuf(n.buf)
		f.buf, open = n.buf, fuse.FOPEN_DIRECT_IO // and so, no shared mappings
	case n.gpu != nil:
		f.drm, f.back = newDRMFile(s, n.gpu, who.tid), n.gpu.arena.fd
	default:
		f.proc, errno = s.openKFD(who)
		f.back = s.kfd.fd
	}
	if errno != 0 {
		return nil, 0, errno
	}
	s.mu.Lock()
	s.lastFile++
	f.id = s.lastFile
	s.files[f.id] = f
	s.unlock()
	return f, open, 0
}

// Getattr reports one link, or CRIU takes the file for a deleted one.
func (n *devNode) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = 0o666
	out.Nlink = 1
	if n.buf != nil {
		out.Size = n.buf.bo.size
	}
	return 0
}

// PassthroughFd gives the kernel the memfd that mappings of the file reach.
func (f *openFile) PassthroughFd() (int, bool) { return f.back, f.back >= 0 }

// Flush says that there is nothing to flush, once for the whole mount: the
// kernel then asks no more. It would wait for the answer in every close, and so
// for ever in those of a simulator that was killed with a descriptor of its own
// mount open.
func (f *openFile) Flush(context.Context) syscall.Errno { return syscall.ENOSYS }

// Release is the last close of the open file description.
func (f *openFile) Release(context.Context) syscall.Errno {
	s := f.sim
	if f.buf == nil { // requests on a dmabuf give no descriptors
		s.dropTokens(f)
	}
	s.mu.Lock()
	delete(s.files, f.id)
	s.mu.Unlock()
	switch {
	case f.buf != nil:
		s.closeDmabuf(f.buf)
	case f.drm != nil:
		s.mu.Lock()
		s.putDRMFile(f.drm)
		s.unlock()
	}
	return 0
}

// Ioctl dispatches a request.
func (f *openFile) Ioctl(ctx context.Context, cmd uint32, _ uint64, in, out []byte) (int32, syscall.Errno) {
	c, ok := fuse.FromContext(ctx)
	if !ok {
		return 0, syscall.EIO
	}
	who := caller{tid: int(c.Pid)}
	req := abi.Request(cmd)
	// A handler that answers nothing gives back what it was given, as the
	// drivers do; out comes from a pool and holds another request's bytes.
	clear(out[copy(out, in):])
	switch {
	case req == iocIdentify:
		return 0, reply(out, &struct{ ID uint64 }{f.id})
	case req == iocClaim:
		return 0, f.claim(in, out)
	case req == iocDrop:
		return 0, f.drop(in)
	}
	if errno := f.sim.injected(req.String(), f); errno != 0 {
		return 0, errno
	}
	switch {
	case f.proc != nil && req.Type() == abi.TypeKFD:
		return 0, f.kfdIoctl(ctx, who, req, in, out)
	case f.drm != nil && req.Type() == abi.TypeDRM:
		return 0, f.drmIoctl(ctx, who, req, in, out)
	}
	return 0, f.sim.refuse(syscall.ENOTTY, "no such request on this file", "request", req)
}

// reply encodes a result.
func reply(out []byte, v any) syscall.Errno {
	if abi.Encode(out, v) != nil {
		return syscall.EIO
	}
	return 0
}

// dmabufDir makes every exported buffer openable by its number.
type dmabufDir struct {
	fs.Inode
	sim *Sim
}

// Lookup finds an exported buffer.
func (d *dmabufDir) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	id, err := strconv.ParseUint(name, 10, 64)
	if err != nil {
		return nil, syscall.ENOENT
	}
	d.sim.mu.Lock()
	b := d.sim.dmabufs[id]
	d.sim.mu.Unlock()
	if b == nil {
		return nil, syscall.ENOENT
	}
	n := &devNode{sim: d.sim, buf: b}
	out.Attr.Mode, out.Attr.Nlink, out.Attr.Size = 0o666, 1, b.bo.size
	return d.NewInode(ctx, n, fs.StableAttr{Mode: syscall.S_IFREG, Ino: inoDmabuf | id&inoNumMask}), 0
}

// mount serves the device files at Dir/dev.
func (s *Sim) mount() error {
	if err := os.Mkdir(s.DevDir(), 0o755); err != nil {
		return err
	}
	long := time.Hour
	root := &fs.Inode{}
	opts := &fs.Options{EntryTimeout: &long, AttrTimeout: &long}
	opts.MountOptions = fuse.MountOptions{
		AllowOther: true, MaxStackDepth: 1, FsName: "kfdsim", Name: "kfdsim", DirectMount: true,
	}
	opts.OnAdd = func(ctx context.Context) {
		file := func(dir *fs.Inode, name string, ino uint64, n *devNode) {
			dir.AddChild(name, dir.NewPersistentInode(ctx, n, fs.StableAttr{Mode: syscall.S_IFREG, Ino: ino}), false)
		}
		file(root, "kfd", inoKFD, &devNode{sim: s})
		dri := root.NewPersistentInode(ctx, &fs.Inode{}, fs.StableAttr{Mode: syscall.S_IFDIR})
		root.AddChild("dri", dri, false)
		for _, g := range s.gpus {
			file(dri, fmt.Sprintf("renderD%d", g.cfg.RenderMinor), inoRender|uint64(g.cfg.RenderMinor),
				&devNode{sim: s, gpu: g})
		}
		root.AddChild("dmabuf", root.NewPersistentInode(ctx, &dmabufDir{sim: s}, fs.StableAttr{Mode: syscall.S_IFDIR}),
			false)
	}
	srv, err := fs.Mount(s.DevDir(), root, opts)
	if err != nil {
		return fmt.Errorf("mount %s: %w", s.DevDir(), err)
	}
	s.fuse = srv
	var st unix.Stat_t
	if err := unix.Stat(s.DevDir(), &st); err != nil {
		return fmt.Errorf("mount %s: %w", s.DevDir(), err)
	}
	s.dev.Store(st.Dev)
	if srv.KernelSettings().Flags64()&fuse.CAP_PASSTHROUGH == 0 {
		return errors.New("this kernel has no FUSE passthrough (CONFIG_FUSE_PASSTHROUGH, Linux 6.9)")
	}
	return nil
}
