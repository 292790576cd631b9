package kfdsim

import (
	"context"
	"syscall"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// drmFile is one open of a render node. It lives while it is open or a KFD
// process has acquired its address space. Guarded by Sim.mu.
type drmFile struct {
	gpu     *gpu
	pid     int // of the opener, for messages
	refs    int
	compute bool // serves a KFD process
	vm      *vm
	gem     map[uint32]*gemObject
	byBO    map[*bo]*gemObject
	free    uint32 // no handle below it is free
	ctxs    map[uint32]*drmCtx
	lists   map[uint32][]*bo
	lastCtx uint32
	lastBOL uint32
}

// gemObject is a BO as one open of a render node knows it.
type gemObject struct {
	handle uint32
	bo     *bo      // held
	vas    []uint64 // where GEM_VA has mapped it, some perhaps no more
	// buf is its dmabuf, held since it was exported or imported: the driver has one
	// for as long as there is a handle.
	buf *dmabuf
}

// keep holds a dmabuf of the object. Preconditions: Sim.mu is held.
func (o *gemObject) keep(d *dmabuf) {
	if o.buf == nil && d != nil {
		o.buf = d
		d.opens++
	}
}

// putObject drops what an object holds. Preconditions: Sim.mu is held.
func (s *Sim) putObject(o *gemObject) {
	if o.buf != nil {
		s.putDmabuf(o.buf)
	}
	s.putBO(o.bo)
}

func newDRMFile(s *Sim, g *gpu, pid int) *drmFile {
	return &drmFile{gpu: g, pid: pid, refs: 1, vm: &vm{gpu: g},
		gem: map[uint32]*gemObject{}, byBO: map[*bo]*gemObject{}, free: 1,
		ctxs: map[uint32]*drmCtx{}, lists: map[uint32][]*bo{}}
}

// putDRMFile drops a reference, and with the last one all handles, contexts
// and mappings.
//
// Preconditions: Sim.mu is held.
func (s *Sim) putDRMFile(f *drmFile) {
	if f.refs--; f.refs > 0 {
		return
	}
	s.unmapIf(f.vm, func(*mapping) bool { return true })
	for _, list := range f.lists {
		s.putList(list)
	}
	for _, o := range f.gem {
		s.putObject(o)
	}
	clear(f.lists)
	clear(f.gem)
	clear(f.byBO)
	clear(f.ctxs)
}

// drmCall is what a handler of a DRM request gets.
type drmCall struct {
	ctx  context.Context
	sim  *Sim
	file *openFile
	drm  *drmFile
	who  caller
	in   []byte
	out  []byte
}

func (c *drmCall) decode(args any) syscall.Errno {
	if abi.Decode(c.in, args) != nil {
		return syscall.EINVAL
	}
	return 0
}

func (c *drmCall) reply(args any) syscall.Errno { return reply(c.out, args) }

var drmHandlers = map[uint8]func(*drmCall) syscall.Errno{
	abi.DRMIocVersion.Nr():           drmVersion,
	abi.DRMIocGetCap.Nr():            drmGetCap,
	abi.DRMIocGEMClose.Nr():          drmGEMClose,
	abi.DRMIocPrimeHandleToFD.Nr():   drmPrimeHandleToFD,
	abi.DRMIocPrimeFDToHandle.Nr():   drmPrimeFDToHandle,
	abi.DRMIocGEMChangeHandle.Nr():   drmGEMChangeHandle,
	abi.AMDGPUIocGEMCreate.Nr():      amdgpuGEMCreate,
	abi.AMDGPUIocGEMMmap.Nr():        amdgpuGEMMmap,
	abi.AMDGPUIocGEMUserptr.Nr():     amdgpuGEMUserptr,
	abi.AMDGPUIocGEMVA.Nr():          amdgpuGEMVA,
	abi.AMDGPUIocGEMWaitIdle.Nr():    amdgpuGEMWaitIdle,
	abi.AMDGPUIocGEMOp.Nr():          amdgpuGEMOp,
	abi.AMDGPUIocGEMListHandles.Nr(): amdgpuGEMListHandles,
	abi.AMDGPUIocCtx.Nr():            amdgpuCtx,
	abi.AMDGPUIocBOList.Nr():         amdgpuBOList,
	abi.AMDGPUIocCS.Nr():             amdgpuCS,
	abi.AMDGPUIocWaitCS.Nr():         amdgpuWaitCS,
	abi.AMDGPUIocInfo.Nr():           amdgpuInfo,
}

func (f *openFile) drmIoctl(ctx context.Context, who caller, req abi.Request, in, out []byte) syscall.Errno {
	h := drmHandlers[req.Nr()]
	if h == nil {
		return f.sim.refuse(syscall.EINVAL, "request not modelled", "request", req)
	}
	return h(&drmCall{ctx: ctx, sim: f.sim, file: f, drm: f.drm, who: who, in: in, out: out})
}

// copyString is the DRM core's: as much as fits, and the whole length.
func (c *drmCall) copyString(addr uint64, room *uint64, val string) syscall.Errno {
	n := min(*room, uint64(len(val)))
	*room = uint64(len(val))
	if n == 0 || addr == 0 {
		return 0
	}
	return c.who.writeUser(addr, []byte(val)[:n])
}

func drmVersion(c *drmCall) syscall.Errno {
	var args abi.DRMVersionArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	args.Major, args.Minor, args.Patchlevel = abi.DRMVersionMajor, 59, 0
	for _, f := range []struct {
		addr uint64
		room *uint64
		val  string
	}{
		{args.Name, &args.NameLen, "amdgpu"},
		{args.Date, &args.DateLen, "20150101"},
		{args.Desc, &args.DescLen, "AMD GPU"},
	} {
		if errno := c.copyString(f.addr, f.room, f.val); errno != 0 {
			return errno
		}
	}
	return c.reply(&args)
}

func drmGetCap(c *drmCall) syscall.Errno {
	var args abi.DRMGetCapArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	if args.Capability != abi.DRMCapPrime {
		return c.sim.refuse(syscall.EINVAL, "capability not modelled", "capability", args.Capability)
	}
	args.Value = abi.DRMPrimeImport | abi.DRMPrimeExport
	return c.reply(&args)
}

// object finds a GEM object. errno is ENOENT.
//
// Preconditions: Sim.mu is held.
func (c *drmCall) object(handle uint32) (*gemObject, syscall.Errno) {
	o := c.drm.gem[handle]
	if o == nil {
		return nil, c.sim.refuse(syscall.ENOENT, "no such gem handle", "handle", handle)
	}
	return o, 0
}

// addObject gives a held BO the lowest free handle.
//
// Preconditions: Sim.mu is held.
func (f *drmFile) addObject(b *bo) *gemObject {
	for f.gem[f.free] != nil {
		f.free++
	}
	o := &gemObject{handle: f.free, bo: b}
	f.gem[o.handle], f.byBO[b] = o, o
	return o
}

// freeHandle makes a handle free. Preconditions: Sim.mu is held.
func (f *drmFile) freeHandle(h uint32) {
	delete(f.gem, h)
	f.free = min(f.free, h)
}

func drmGEMClose(c *drmCall) syscall.Errno {
	var args abi.DRMGEMCloseArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	c.sim.mu.Lock()
	defer c.sim.unlock()
	o := c.drm.gem[args.Handle]
	if o == nil {
		return c.sim.refuse(syscall.EINVAL, "close of no gem handle", "handle", args.Handle)
	}
	c.drm.freeHandle(args.Handle)
	delete(c.drm.byBO, o.bo)
	c.sim.unmapObject(c.drm.vm, o)
	c.sim.putObject(o)
	return 0
}

func drmGEMChangeHandle(c *drmCall) syscall.Errno {
	var args abi.DRMGEMChangeHandleArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	c.sim.mu.Lock()
	defer c.sim.unlock()
	o, errno := c.object(args.Handle)
	if errno != 0 {
		return errno
	}
	if args.NewHandle == 0 || args.NewHandle > 1<<31-1 {
		return c.sim.refuse(syscall.EINVAL, "new gem handle", "handle", args.NewHandle)
	}
	if other := c.drm.gem[args.NewHandle]; other != nil && other != o {
		return c.sim.refuse(syscall.ENOSPC, "new gem handle is taken", "handle", args.NewHandle)
	}
	c.drm.freeHandle(args.Handle)
	o.handle = args.NewHandle
	c.drm.gem[o.handle] = o
	return 0
}

func drmPrimeHandleToFD(c *drmCall) syscall.Errno {
	var args abi.DRMPrimeArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	if args.Flags&^(abi.DRMCloexec|abi.DRMRdwr) != 0 {
		return c.sim.refuse(syscall.EINVAL, "prime flags", "flags", args.Flags)
	}
	c.sim.mu.Lock()
	o, errno := c.object(args.Handle)
	if errno == 0 && o.bo.kind == boUserptr {
		errno = c.sim.refuse(syscall.EPERM, "export of a userptr bo")
	}
	if errno != 0 {
		c.sim.unlock()
		return errno
	}
	b := o.bo.get()
	c.sim.unlock()
	token, errno := c.sim.exportBO(b, c.file)
	c.sim.mu.Lock()
	if errno == 0 && c.drm.gem[o.handle] == o {
		o.keep(b.dmabuf)
	}
	c.sim.putBO(b)
	c.sim.unlock()
	if errno != 0 {
		return errno
	}
	args.FD = int32(token)
	return c.reply(&args)
}

func drmPrimeFDToHandle(c *drmCall) syscall.Errno {
	var args abi.DRMPrimeArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	buf, errno := c.sim.dmabufOf(c.who, int(args.FD))
	if errno != 0 {
		return errno
	}
	defer c.sim.closeDmabuf(buf)
	c.sim.mu.Lock()
	defer c.sim.unlock()
	b := buf.bo
	if o := c.drm.byBO[b]; o != nil {
		o.keep(buf)
		args.Handle = o.handle
		return c.reply(&args)
	}
	if b.gpu != c.drm.gpu {
		return c.sim.refuse(syscall.EINVAL, "import of another gpu's bo is not modelled", "of", b.gpu.cfg.ID, "on",
			c.drm.gpu.cfg.ID)
	}
	o := c.drm.addObject(b.get())
	o.keep(buf)
	args.Handle = o.handle
	return c.reply(&args)
}
