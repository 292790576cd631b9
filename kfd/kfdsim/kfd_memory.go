package kfdsim

import (
	"encoding/binary"
	"slices"
	"syscall"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// A memory handle is the gpu_id the process uses and a number within that GPU.
func makeHandle(userID uint32, id int) uint64 { return uint64(userID)<<32 | uint64(uint32(id)) }

// memKinds are the memory types of an allocation, exactly one of which is set.
const memKinds = abi.KFDMemVRAM | abi.KFDMemGTT | abi.KFDMemUserptr | abi.KFDMemDoorbell | abi.KFDMemMMIORemap

func kfdAllocMemory(c *kfdCall) syscall.Errno {
	var args abi.KFDAllocMemoryArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	s := c.sim
	if args.Flags&memKinds == abi.KFDMemUserptr {
		if err := checkUserRange(c.proc.pid, args.MmapOffset, pageAlign(args.Size), false); err != nil {
			return s.refuse(syscall.EFAULT, err.Error())
		}
	}
	c.proc.mu.Lock()
	defer c.proc.mu.Unlock()
	s.mu.Lock()
	defer s.unlock()
	d, errno := c.proc.bound(args.GPUID)
	if errno != 0 {
		return errno
	}
	m, errno := s.allocMem(d, args.VAAddr, args.Size, args.MmapOffset, args.Flags)
	if errno != 0 {
		return errno
	}
	for m.handle = 0; d.mem[m.handle] != nil; {
		m.handle++
	}
	d.mem[m.handle] = m
	args.Handle = makeHandle(args.GPUID, m.handle)
	if m.bo.kind != boUserptr {
		args.MmapOffset = m.bo.off
	}
	return c.reply(&args)
}

// allocMem makes an allocation without a handle, for ALLOC_MEMORY_OF_GPU and
// RESTORE. userAddr serves userptr alone.
//
// Preconditions: Sim.mu is held.
func (s *Sim) allocMem(d *pdd, va, size, userAddr uint64, flags uint32) (*kfdMem, syscall.Errno) {
	refuse := func(errno syscall.Errno, why string) (*kfdMem, syscall.Errno) {
		return nil, s.refuse(errno, why, "pid", d.proc.pid, "gpu", d.userID, "va", va, "size", size, "flags",
			uint64(flags))
	}
	if size == 0 {
		return refuse(syscall.EINVAL, "allocation of no bytes")
	}
	if va%pageSize != 0 {
		return refuse(syscall.EINVAL, "address of an allocation is not page aligned")
	}
	if flags&abi.KFDMemAQLQueueMem != 0 {
		return refuse(syscall.EINVAL, "AQL_QUEUE_MEM is not modelled")
	}
	g := d.gpu
	m := &kfdMem{pdd: d, va: va, flags: flags}
	var errno syscall.Errno
	switch flags & memKinds {
	case abi.KFDMemVRAM:
		largeBAR := g.cfg.VisibleVRAM == g.cfg.VRAM
		if flags&abi.KFDMemPublic != 0 && !largeBAR {
			return refuse(syscall.EINVAL, "host visible vram on a small bar")
		}
		if m.bo, errno = s.newBO(g, boVRAM, pageAlign(size)); errno != 0 {
			return nil, errno
		}
		m.bo.noCPU = !largeBAR
		m.bo.domains = abi.AMDGPUDomainVRAM
	case abi.KFDMemGTT:
		if m.bo, errno = s.newBO(g, boGTT, pageAlign(size)); errno != 0 {
			return nil, errno
		}
		m.bo.domains = abi.AMDGPUDomainGTT
	case abi.KFDMemUserptr:
		if userAddr == 0 || userAddr%pageSize != 0 {
			return refuse(syscall.EINVAL, "userptr without a page aligned address")
		}
		m.bo = s.addBO(&bo{gpu: g, kind: boUserptr, size: pageAlign(size), noCPU: true,
			user: userRange{pid: d.proc.pid, addr: userAddr}, domains: abi.AMDGPUDomainGTT})
	case abi.KFDMemDoorbell:
		if size != doorbellSlice {
			return refuse(syscall.EINVAL, "doorbell allocation is not the process's slice")
		}
		if errno := d.ensureDoorbells(); errno != 0 {
			return nil, errno
		}
		m.bo = d.doorbells.get()
	case abi.KFDMemMMIORemap:
		if size != pageSize {
			return refuse(syscall.EINVAL, "mmio allocation is not one page")
		}
		m.bo = g.mmio.get()
	default:
		return refuse(syscall.EINVAL, "allocation is not of exactly one memory type")
	}
	return m, 0
}

// lookup finds an allocation by its handle. errno is EINVAL.
//
// Preconditions: Sim.mu is held.
func (p *kfdProcess) lookup(handle uint64) (*kfdMem, syscall.Errno) {
	d := p.pddByID(uint32(handle >> 32))
	if d == nil {
		return nil, p.sim.refuse(syscall.EINVAL, "handle of an unknown gpu", "handle", handle)
	}
	m := d.mem[int(uint32(handle))]
	if m == nil {
		return nil, p.sim.refuse(syscall.EINVAL, "no such allocation", "handle", handle)
	}
	return m, 0
}

func kfdFreeMemory(c *kfdCall) syscall.Errno {
	var args abi.KFDFreeMemoryArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	c.proc.mu.Lock()
	defer c.proc.mu.Unlock()
	c.sim.mu.Lock()
	defer c.sim.unlock()
	m, errno := c.proc.lookup(args.Handle)
	if errno != 0 {
		return errno
	}
	if len(m.mapped) > 0 {
		return c.sim.refuse(syscall.EBUSY, "freed while mapped to a gpu", "handle", args.Handle)
	}
	if c.proc.events.page.bo == m.bo {
		return c.sim.refuse(syscall.EBUSY, "freed while it is the event page", "handle", args.Handle)
	}
	delete(m.pdd.mem, m.handle)
	c.sim.dropMem(m)
	return 0
}

// deviceArray reads the gpu ids of MAP and UNMAP.
func (c *kfdCall) deviceArray(args *abi.KFDMapMemoryArgs) ([]uint32, syscall.Errno) {
	if args.NDevices == 0 || args.NSuccess > args.NDevices || args.NDevices > abi.KFDMaxGPUInstance {
		return nil, c.sim.refuse(syscall.EINVAL, "device array", "n_devices", args.NDevices, "n_success", args.NSuccess)
	}
	buf := make([]byte, 4*args.NDevices)
	if errno := c.who.readUser(args.DeviceIDsArrayPtr, buf); errno != 0 {
		return nil, errno
	}
	ids := make([]uint32, args.NDevices)
	for i := range ids {
		ids[i] = binary.NativeEndian.Uint32(buf[4*i:])
	}
	return ids, 0
}

func kfdMapMemory(c *kfdCall) syscall.Errno {
	return kfdMapUnmap(c, func(m *kfdMem, d *pdd) syscall.Errno { return c.sim.mapMem(m, d) })
}

func kfdUnmapMemory(c *kfdCall) syscall.Errno {
	return kfdMapUnmap(c, func(m *kfdMem, d *pdd) syscall.Errno {
		if i := slices.Index(m.mapped, d); i >= 0 {
			c.sim.unmapAt(d.drm.vm, m.va, m)
			m.mapped = slices.Delete(m.mapped, i, i+1)
		}
		return 0
	})
}

func kfdMapUnmap(c *kfdCall, do func(*kfdMem, *pdd) syscall.Errno) syscall.Errno {
	var args abi.KFDMapMemoryArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	ids, errno := c.deviceArray(&args)
	if errno != 0 {
		return errno
	}
	c.proc.mu.Lock()
	defer c.proc.mu.Unlock()
	c.sim.mu.Lock()
	defer c.sim.unlock()
	m, errno := c.proc.lookup(args.Handle)
	if errno != 0 {
		return errno
	}
	for ; args.NSuccess < args.NDevices; args.NSuccess++ {
		d, errno := c.proc.bound(ids[args.NSuccess])
		if errno != 0 {
			return errno
		}
		if errno := do(m, d); errno != 0 {
			return errno
		}
	}
	return c.reply(&args)
}

// mapMem maps an allocation into a GPU's address space; twice is once.
//
// Preconditions: Sim.mu is held.
func (s *Sim) mapMem(m *kfdMem, d *pdd) syscall.Errno {
	if slices.Contains(m.mapped, d) {
		return 0
	}
	prot := vmRead
	if m.flags&abi.KFDMemWritable != 0 {
		prot |= vmWrite
	}
	if m.flags&abi.KFDMemExecutable != 0 {
		prot |= vmExec
	}
	if errno := s.mapBO(d.drm.vm, mapping{va: m.va, size: m.bo.size, bo: m.bo, prot: prot, owner: m}); errno != 0 {
		return errno
	}
	m.mapped = append(m.mapped, d)
	return 0
}

func kfdAvailableMemory(c *kfdCall) syscall.Errno {
	var args abi.KFDAvailableMemoryArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	c.sim.mu.Lock()
	defer c.sim.unlock()
	d := c.proc.pddByID(args.GPUID)
	if d == nil {
		return c.sim.refuse(syscall.EINVAL, "no such gpu", "gpu", args.GPUID)
	}
	args.Available = d.gpu.cfg.VRAM - d.gpu.vramUsed
	return c.reply(&args)
}

func kfdGetDmabufInfo(c *kfdCall) syscall.Errno {
	var args abi.KFDGetDmabufInfoArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	buf, errno := c.sim.dmabufOf(c.who, int(args.DmabufFD))
	if errno != 0 {
		return errno
	}
	defer c.sim.closeDmabuf(buf)
	b := buf.bo
	args.Size, args.MetadataSize, args.GPUID = b.size, 0, b.gpu.cfg.ID
	args.Flags = abi.KFDMemGTT
	if b.kind == boVRAM {
		args.Flags = abi.KFDMemVRAM
		if !b.noCPU {
			args.Flags |= abi.KFDMemPublic
		}
	}
	return c.reply(&args)
}

func kfdImportDmabuf(c *kfdCall) syscall.Errno {
	var args abi.KFDImportDmabufArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	buf, errno := c.sim.dmabufOf(c.who, int(args.DmabufFD))
	if errno != 0 {
		return errno
	}
	defer c.sim.closeDmabuf(buf)
	c.proc.mu.Lock()
	defer c.proc.mu.Unlock()
	c.sim.mu.Lock()
	defer c.sim.unlock()
	d, errno := c.proc.bound(args.GPUID)
	if errno != 0 {
		return errno
	}
	b := buf.bo
	if b.gpu != d.gpu {
		return c.sim.refuse(syscall.EINVAL, "dmabuf of another gpu", "gpu", args.GPUID, "of", b.gpu.cfg.ID)
	}
	flags := uint32(abi.KFDMemWritable | abi.KFDMemExecutable)
	if b.kind == boVRAM {
		flags |= abi.KFDMemVRAM
	} else {
		flags |= abi.KFDMemGTT
	}
	m := &kfdMem{pdd: d, va: args.VAAddr, bo: b.get(), flags: flags}
	for d.mem[m.handle] != nil {
		m.handle++
	}
	d.mem[m.handle] = m
	args.Handle = makeHandle(args.GPUID, m.handle)
	return c.reply(&args)
}

func kfdExportDmabuf(c *kfdCall) syscall.Errno {
	var args abi.KFDExportDmabufArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	c.sim.mu.Lock()
	m, errno := c.proc.lookup(args.Handle)
	if errno == 0 && m.bo.kind != boVRAM && m.bo.kind != boGTT {
		errno = c.sim.refuse(syscall.EINVAL, "export of a bo that is neither vram nor gtt", "handle", args.Handle)
	}
	if errno != 0 {
		c.sim.unlock()
		return errno
	}
	b := m.bo.get()
	c.sim.unlock()
	args.DmabufFD, errno = c.sim.exportBO(b, c.file)
	c.sim.mu.Lock()
	c.sim.putBO(b)
	c.sim.unlock()
	if errno != 0 {
		return errno
	}
	return c.reply(&args)
}
