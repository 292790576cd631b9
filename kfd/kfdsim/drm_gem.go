package kfdsim

import (
	"encoding/binary"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

func amdgpuGEMCreate(c *drmCall) syscall.Errno {
	var args abi.AMDGPUGEMCreateIn
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	if args.BOSize == 0 {
		return c.sim.refuse(syscall.EINVAL, "gem bo of no bytes")
	}
	kind := boGTT
	switch {
	case args.Domains&abi.AMDGPUDomainVRAM != 0:
		kind = boVRAM
	case args.Domains&(abi.AMDGPUDomainGTT|abi.AMDGPUDomainCPU) != 0:
	default:
		return c.sim.refuse(syscall.EINVAL, "gem bo in domains not modelled", "domains", args.Domains)
	}
	size := pageAlign(args.BOSize)
	c.sim.mu.Lock()
	b, errno := c.sim.newBO(c.drm.gpu, kind, size)
	if errno != 0 && kind == boVRAM {
		// A full VRAM makes room by evicting: the queues of KFD processes that have memory
		// there stand still until it is back. That takes turns; here the new BO is what
		// goes to system memory in the end.
		if b, errno = c.sim.newBO(c.drm.gpu, boGTT, size); errno == 0 {
			c.sim.pressure(c.drm.gpu)
		}
	}
	if errno != 0 {
		c.sim.unlock()
		return errno
	}
	defer c.sim.unlock()
	b.domains, b.gemFlags = args.Domains, args.DomainFlags
	b.noCPU = args.DomainFlags&abi.AMDGPUCreateNoCPUAccess != 0
	return c.reply(&abi.AMDGPUGEMCreateOut{Handle: c.drm.addObject(b).handle})
}

func amdgpuGEMMmap(c *drmCall) syscall.Errno {
	var args abi.AMDGPUGEMMmapIn
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	c.sim.mu.Lock()
	defer c.sim.unlock()
	o, errno := c.object(args.Handle)
	if errno != 0 {
		return errno
	}
	if o.bo.noCPU {
		return c.sim.refuse(syscall.EPERM, "bo is not visible to the cpu", "handle", args.Handle)
	}
	return c.reply(&abi.AMDGPUGEMMmapOut{AddrPtr: o.bo.off})
}

func amdgpuGEMUserptr(c *drmCall) syscall.Errno {
	var args abi.AMDGPUGEMUserptrArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	if args.Addr%pageSize != 0 || args.Size%pageSize != 0 || args.Size == 0 {
		return c.sim.refuse(syscall.EINVAL, "userptr is not made of whole pages", "addr", args.Addr, "size", args.Size)
	}
	const known = abi.AMDGPUUserptrReadonly | abi.AMDGPUUserptrAnononly | abi.AMDGPUUserptrValidate |
		abi.AMDGPUUserptrRegister
	if args.Flags&^known != 0 {
		return c.sim.refuse(syscall.EINVAL, "userptr flags", "flags", args.Flags)
	}
	if args.Flags&abi.AMDGPUUserptrReadonly == 0 && args.Flags&abi.AMDGPUUserptrRegister == 0 {
		return c.sim.refuse(syscall.EACCES, "writable userptr must be registered for mmu notification")
	}
	st, err := readStatus(c.who.tid)
	if err != nil {
		return c.sim.refuse(syscall.ESRCH, err.Error())
	}
	if args.Flags&abi.AMDGPUUserptrValidate != 0 {
		if err := checkUserRange(st.tgid, args.Addr, args.Size, args.Flags&abi.AMDGPUUserptrAnononly != 0); err != nil {
			return c.sim.refuse(syscall.EFAULT, err.Error())
		}
	}
	c.sim.mu.Lock()
	defer c.sim.unlock()
	b := c.sim.addBO(&bo{gpu: c.drm.gpu, kind: boUserptr, size: args.Size, noCPU: true,
		user: userRange{pid: st.tgid, addr: args.Addr}, domains: abi.AMDGPUDomainGTT})
	args.Handle = c.drm.addObject(b).handle
	return c.reply(&args)
}

// vaFlags are the flags of GEM_VA that the driver takes; the memory type bits
// 5–8 and NOALLOC (bit 9) are accepted and mean nothing here.
const vaFlags = abi.AMDGPUVMDelayUpdate | abi.AMDGPUVMPageReadable | abi.AMDGPUVMPageWriteable |
	abi.AMDGPUVMPageExecutable | 0xf<<5 | 1<<9

func amdgpuGEMVA(c *drmCall) syscall.Errno {
	var args abi.AMDGPUGEMVAArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	if args.Flags&^vaFlags != 0 {
		return c.sim.refuse(syscall.EINVAL, "va flags", "flags", args.Flags)
	}
	c.sim.mu.Lock()
	defer c.sim.unlock()
	v := c.drm.vm
	if args.Operation == abi.AMDGPUVAOpClear {
		c.sim.clearRange(v, args.VAAddress, args.MapSize)
		return 0
	}
	o, errno := c.object(args.Handle)
	if errno != 0 {
		return errno
	}
	switch args.Operation {
	case abi.AMDGPUVAOpReplace:
		c.sim.clearRange(v, args.VAAddress, args.MapSize)
		fallthrough
	case abi.AMDGPUVAOpMap:
		prot := 0
		if args.Flags&abi.AMDGPUVMPageReadable != 0 {
			prot |= vmRead
		}
		if args.Flags&abi.AMDGPUVMPageWriteable != 0 {
			prot |= vmWrite
		}
		if args.Flags&abi.AMDGPUVMPageExecutable != 0 {
			prot |= vmExec
		}
		if c.sim.injectedMapping(c.drm.gpu) {
			return 0 // said to be mapped, and is not
		}
		errno := c.sim.mapBO(v, mapping{va: args.VAAddress, size: args.MapSize, bo: o.bo, off: args.OffsetInBO,
			prot: prot, owner: o})
		if errno == 0 {
			o.vas = append(o.vas, args.VAAddress)
		}
		return errno
	case abi.AMDGPUVAOpUnmap:
		if !c.sim.unmapAt(v, args.VAAddress, o) {
			return c.sim.refuse(syscall.ENOENT, "unmap of an address not mapped", "va", args.VAAddress, "handle",
				args.Handle)
		}
		return 0
	}
	return c.sim.refuse(syscall.EINVAL, "va operation", "operation", args.Operation)
}

func amdgpuGEMWaitIdle(c *drmCall) syscall.Errno {
	var args abi.AMDGPUGEMWaitIdleIn
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	c.sim.mu.Lock()
	o, errno := c.object(args.Handle)
	if errno != 0 {
		c.sim.unlock()
		return errno
	}
	fences := c.drm.fencesOf(o.bo)
	domain := uint32(o.bo.domains)
	c.sim.unlock()
	var out abi.AMDGPUGEMWaitIdleOut
	out.Domain = domain
	for _, f := range fences {
		busy, errno := waitFence(c.ctx, f, args.Timeout)
		if errno != 0 {
			return errno
		}
		if busy {
			out.Status = 1
			break
		}
	}
	return c.reply(&out)
}

// monotonic returns CLOCK_MONOTONIC in nanoseconds.
func monotonic() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}

// untilAbsolute turns an absolute timeout of the DRM interface into a
// duration; negative when read as signed is for ever.
func untilAbsolute(timeout uint64) time.Duration {
	if int64(timeout) < 0 {
		return time.Duration(1<<63 - 1)
	}
	now := monotonic()
	if timeout <= now {
		return 0
	}
	return time.Duration(timeout - now)
}

func amdgpuGEMOp(c *drmCall) syscall.Errno {
	var args abi.AMDGPUGEMOpMappingArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	c.sim.mu.Lock()
	o, errno := c.object(args.Handle)
	if errno != 0 {
		c.sim.unlock()
		return errno
	}
	var user []byte
	switch args.Op {
	case abi.AMDGPUGEMOpGetCreateInfo:
		user = appendStruct(nil, &abi.AMDGPUGEMCreateIn{BOSize: o.bo.size, Alignment: pageSize, Domains: o.bo.domains,
			DomainFlags: o.bo.gemFlags})
	case abi.AMDGPUGEMOpGetMappingInfo:
		n := uint32(0)
		for _, m := range c.drm.vm.maps {
			if m.bo != o.bo {
				continue
			}
			if n++; n <= args.NumEntries {
				user = appendStruct(user,
					&abi.AMDGPUGEMVMEntry{Addr: m.va, Size: m.size, Offset: m.off, Flags: m.gemFlags()})
			}
		}
		args.NumEntries = n
	default:
		c.sim.unlock()
		return c.sim.refuse(syscall.EINVAL, "gem operation not modelled", "op", args.Op)
	}
	c.sim.unlock()
	if len(user) > 0 {
		if errno := c.who.writeUser(args.Value, user); errno != 0 {
			return errno
		}
	}
	return c.reply(&args)
}

// gemFlags returns a mapping's rights as GEM_VA gives them.
func (m *mapping) gemFlags() uint64 {
	var f uint64
	if m.prot&vmRead != 0 {
		f |= abi.AMDGPUVMPageReadable
	}
	if m.prot&vmWrite != 0 {
		f |= abi.AMDGPUVMPageWriteable
	}
	if m.prot&vmExec != 0 {
		f |= abi.AMDGPUVMPageExecutable
	}
	return f
}

func amdgpuGEMListHandles(c *drmCall) syscall.Errno {
	var args abi.AMDGPUGEMListHandlesArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	c.sim.mu.Lock()
	handles := make([]uint32, 0, len(c.drm.gem))
	for h := range c.drm.gem {
		handles = append(handles, h)
	}
	slices.Sort(handles)
	var user []byte
	for i, h := range handles {
		if uint32(i) >= args.NumEntries {
			break
		}
		o := c.drm.gem[h]
		e := abi.AMDGPUGEMListHandlesEntry{GEMHandle: h, Size: o.bo.size, PreferredDomains: o.bo.domains,
			AllocFlags: o.bo.gemFlags, Alignment: pageSize}
		// IS_IMPORT marks memory of another device, which is not modelled: an object of
		// the same device is itself again when it is imported.
		user = appendStruct(user, &e)
	}
	c.sim.unlock()
	args.NumEntries = uint32(len(handles))
	if len(user) > 0 {
		if errno := c.who.writeUser(args.Entries, user); errno != 0 {
			return errno
		}
	}
	return c.reply(&args)
}

// boListEntries reads the BOs of a list. The handles must all exist.
func (c *drmCall) boListEntries(args *abi.AMDGPUBOListIn) ([]*bo, syscall.Errno) {
	if args.BONumber > 1<<16 || args.BOInfoSize < 4 || args.BOInfoSize > 256 {
		return nil, c.sim.refuse(syscall.EINVAL, "bo list", "bos", args.BONumber, "entry_size", args.BOInfoSize)
	}
	buf := make([]byte, args.BONumber*args.BOInfoSize)
	if errno := c.who.readUser(args.BOInfoPtr, buf); errno != 0 {
		return nil, errno
	}
	c.sim.mu.Lock()
	defer c.sim.unlock()
	var list []*bo
	for i := range args.BONumber {
		o, errno := c.object(binary.NativeEndian.Uint32(buf[i*args.BOInfoSize:]))
		if errno != 0 {
			c.sim.putList(list)
			return nil, errno
		}
		list = append(list, o.bo.get())
	}
	return list, 0
}

// putList drops the holds of a BO list. Preconditions: Sim.mu is held.
func (s *Sim) putList(list []*bo) {
	for _, b := range list {
		s.putBO(b)
	}
}

func amdgpuBOList(c *drmCall) syscall.Errno {
	var args abi.AMDGPUBOListIn
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	var list []*bo
	if args.Operation == abi.AMDGPUBOListOpCreate || args.Operation == abi.AMDGPUBOListOpUpdate {
		var errno syscall.Errno
		if list, errno = c.boListEntries(&args); errno != 0 {
			return errno
		}
	}
	c.sim.mu.Lock()
	defer c.sim.unlock()
	old, exists := c.drm.lists[args.ListHandle]
	switch args.Operation {
	case abi.AMDGPUBOListOpCreate:
		c.drm.lastBOL++
		args.ListHandle = c.drm.lastBOL
		c.drm.lists[args.ListHandle] = list
		return c.reply(&abi.AMDGPUBOListOut{ListHandle: args.ListHandle})
	case abi.AMDGPUBOListOpDestroy:
		if exists {
			delete(c.drm.lists, args.ListHandle)
			c.sim.putList(old)
		}
		return c.reply(&abi.AMDGPUBOListOut{ListHandle: args.ListHandle})
	case abi.AMDGPUBOListOpUpdate:
		if !exists {
			c.sim.putList(list)
			return c.sim.refuse(syscall.ENOENT, "no such bo list", "list", args.ListHandle)
		}
		c.sim.putList(old)
		c.drm.lists[args.ListHandle] = list
		return c.reply(&abi.AMDGPUBOListOut{ListHandle: args.ListHandle})
	}
	return c.sim.refuse(syscall.EINVAL, "bo list operation", "operation", args.Operation)
}
