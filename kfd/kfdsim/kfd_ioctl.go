package kfdsim

import (
	"context"
	"syscall"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// kfdCall is what a handler of a KFD request gets.
type kfdCall struct {
	ctx  context.Context
	sim  *Sim
	file *openFile
	proc *kfdProcess
	who  caller
	st   procStatus
	in   []byte
	out  []byte
}

// decode fills args from the request.
func (c *kfdCall) decode(args any) syscall.Errno {
	if abi.Decode(c.in, args) != nil {
		return syscall.EINVAL
	}
	return 0
}

// reply encodes args into the answer. KFD copies the structure out even when
// it fails; FUSE drops the bytes of a failed request, and no caller here reads
// them.
func (c *kfdCall) reply(args any) syscall.Errno { return reply(c.out, args) }

// kfdHandlers is keyed by request number, as the driver's table is.
var kfdHandlers = map[uint8]func(*kfdCall) syscall.Errno{
	abi.KFDIocGetVersion.Nr():             kfdGetVersion,
	abi.KFDIocCreateQueue.Nr():            kfdCreateQueue,
	abi.KFDIocDestroyQueue.Nr():           kfdDestroyQueue,
	abi.KFDIocUpdateQueue.Nr():            kfdUpdateQueue,
	abi.KFDIocSetMemoryPolicy.Nr():        kfdSetMemoryPolicy,
	abi.KFDIocGetClockCounters.Nr():       kfdGetClockCounters,
	abi.KFDIocCreateEvent.Nr():            kfdCreateEvent,
	abi.KFDIocDestroyEvent.Nr():           kfdDestroyEvent,
	abi.KFDIocSetEvent.Nr():               kfdSetEvent,
	abi.KFDIocResetEvent.Nr():             kfdResetEvent,
	abi.KFDIocWaitEvents.Nr():             kfdWaitEvents,
	abi.KFDIocSetScratchBackingVA.Nr():    kfdSetScratchBackingVA,
	abi.KFDIocGetTileConfig.Nr():          kfdGetTileConfig,
	abi.KFDIocSetTrapHandler.Nr():         kfdSetTrapHandler,
	abi.KFDIocGetProcessAperturesNew.Nr(): kfdGetApertures,
	abi.KFDIocAcquireVM.Nr():              kfdAcquireVM,
	abi.KFDIocAllocMemory.Nr():            kfdAllocMemory,
	abi.KFDIocFreeMemory.Nr():             kfdFreeMemory,
	abi.KFDIocMapMemory.Nr():              kfdMapMemory,
	abi.KFDIocUnmapMemory.Nr():            kfdUnmapMemory,
	abi.KFDIocGetDmabufInfo.Nr():          kfdGetDmabufInfo,
	abi.KFDIocImportDmabuf.Nr():           kfdImportDmabuf,
	abi.KFDIocExportDmabuf.Nr():           kfdExportDmabuf,
	abi.KFDIocSVM.Nr():                    kfdSVM,
	abi.KFDIocSetXNACKMode.Nr():           kfdSetXNACKMode,
	abi.KFDIocCRIUOp.Nr():                 kfdCRIUOp,
	abi.KFDIocAvailableMemory.Nr():        kfdAvailableMemory,
	abi.KFDIocRuntimeEnable.Nr():          kfdRuntimeEnable,
}

// kfdIoctl applies the checks every KFD request passes: the process that
// opened the file may use it, and for CRIU operations the thread that traces
// that process; CRIU operations need a capability.
func (f *openFile) kfdIoctl(ctx context.Context, who caller, req abi.Request, in, out []byte) syscall.Errno {
	s := f.sim
	h := kfdHandlers[req.Nr()]
	if h == nil {
		return s.refuse(syscall.EINVAL, "request not modelled", "request", req)
	}
	st, err := readStatus(who.tid)
	if err != nil {
		return s.refuse(syscall.ESRCH, err.Error())
	}
	isCRIU := req.Same(abi.KFDIocCRIUOp)
	if st.tgid != f.proc.pid {
		if !isCRIU || !f.proc.tracedBy(who.tid) {
			return s.refuse(syscall.EBADF, "kfd file used by another process", "owner", f.proc.pid, "caller", st.tgid,
				"request", req)
		}
	}
	if isCRIU && !who.mayCheckpoint(st) {
		return s.refuse(syscall.EACCES, "CRIU operation without CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN", "caller",
			st.tgid)
	}
	s.mu.Lock()
	dead := f.proc.dead
	s.mu.Unlock()
	if dead {
		return s.refuse(syscall.EBADF, "kfd file of a process that has ended", "owner", f.proc.pid)
	}
	return h(&kfdCall{ctx: ctx, sim: s, file: f, proc: f.proc, who: who, st: st, in: in, out: out})
}

// tracedBy reports whether tid is the ptracer of the process's leader.
func (p *kfdProcess) tracedBy(tid int) bool {
	st, err := readStatus(p.pid)
	return err == nil && st.tracer == tid
}

func kfdGetVersion(c *kfdCall) syscall.Errno {
	return c.reply(&abi.KFDGetVersionArgs{Major: abi.KFDMajorVersion, Minor: c.sim.opts.KFDMinor})
}

// Apertures of GFX9 and later: LDS and scratch above the canonical hole, and
// for the GPUs' own mappings all of the lower half.
const (
	ldsBase     = 1 << 48
	scratchBase = 2 << 48
	apertureLen = 1<<32 - 1
	gpuvmBase   = vaReservedBottom
	gpuvmLimit  = vaHoleStart - 1
)

func kfdGetApertures(c *kfdCall) syscall.Errno {
	var args abi.KFDGetProcessAperturesNewArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	n := uint32(len(c.proc.pdds))
	if args.NumOfNodes == 0 {
		args.NumOfNodes = n
		return c.reply(&args)
	}
	args.NumOfNodes = min(args.NumOfNodes, n)
	var buf []byte
	c.sim.mu.Lock()
	for _, d := range c.proc.pdds[:args.NumOfNodes] {
		buf = appendStruct(buf, &abi.KFDProcessDeviceApertures{
			LDSBase: ldsBase, LDSLimit: ldsBase + apertureLen,
			ScratchBase: scratchBase, ScratchLimit: scratchBase + apertureLen,
			GPUVMBase: gpuvmBase, GPUVMLimit: gpuvmLimit, GPUID: d.userID,
		})
	}
	c.sim.unlock()
	if errno := c.who.writeUser(args.AperturesPtr, buf); errno != 0 {
		return errno
	}
	return c.reply(&args)
}

func kfdAcquireVM(c *kfdCall) syscall.Errno {
	var args abi.KFDAcquireVMArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	file, errno := c.sim.fileOf(c.who, int(args.DRMFD))
	if errno != 0 {
		return syscall.EINVAL
	}
	c.proc.mu.Lock()
	defer c.proc.mu.Unlock()
	c.sim.mu.Lock()
	defer c.sim.unlock()
	d := c.proc.pddByID(args.GPUID)
	if d == nil {
		return c.sim.refuse(syscall.EINVAL, "no such gpu", "gpu", args.GPUID)
	}
	if d.drm != nil {
		if d.drm == file.drm {
			return 0
		}
		return c.sim.refuse(syscall.EBUSY, "vm already acquired with another render node file", "gpu", args.GPUID)
	}
	return c.sim.initVM(d, file)
}

// initVM binds a process to the address space of an open render node, for
// ACQUIRE_VM and RESTORE. errno is EINVAL for another GPU's file or one that
// already serves a process.
//
// Preconditions: Sim.mu is held.
func (s *Sim) initVM(d *pdd, file *openFile) syscall.Errno {
	if file.drm == nil || file.drm.gpu != d.gpu {
		return s.refuse(syscall.EINVAL, "descriptor is not the gpu's render node", "gpu", d.userID)
	}
	if file.drm.compute {
		return s.refuse(syscall.EINVAL, "render node file already serves a kfd process", "gpu", d.userID)
	}
	if errno := d.ensureDoorbells(); errno != 0 {
		return errno
	}
	file.drm.compute = true
	file.drm.refs++
	d.drm = file.drm
	return 0
}

func kfdGetClockCounters(c *kfdCall) syscall.Errno {
	var args abi.KFDGetClockCountersArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	now := uint64(time.Now().UnixNano())
	args.GPUClockCounter, args.CPUClockCounter, args.SystemClockCounter = now/10, now, now
	args.SystemClockFreq = 1e9
	return c.reply(&args)
}

func kfdSetXNACKMode(c *kfdCall) syscall.Errno {
	var args abi.KFDSetXNACKModeArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	c.sim.mu.Lock()
	defer c.sim.unlock()
	switch {
	case args.XNACKEnabled < 0:
		args.XNACKEnabled = 0
		if c.proc.xnack {
			args.XNACKEnabled = 1
		}
	case len(c.proc.queues) > 0:
		return c.sim.refuse(syscall.EBUSY, "xnack mode set while queues exist")
	case args.XNACKEnabled > 0 && !c.proc.xnackSupported():
		return c.sim.refuse(syscall.EPERM, "a gpu of this process cannot retry faults")
	default:
		c.proc.xnack = args.XNACKEnabled > 0
	}
	return c.reply(&args)
}

// xnackSupported: per-process retry exists on GC 9.4.2 and 9.4.3.
func (p *kfdProcess) xnackSupported() bool {
	for _, d := range p.pdds {
		if t := d.gpu.model.GFXTarget; t != 90010 && t != 90402 {
			return false
		}
	}
	return true
}

// The requests below set what a runtime sets at start-up and this simulation
// has no use for; they check the GPU and succeed.

func kfdCheckGPU(c *kfdCall, id uint32) syscall.Errno {
	c.sim.mu.Lock()
	defer c.sim.unlock()
	if c.proc.pddByID(id) == nil {
		return c.sim.refuse(syscall.EINVAL, "no such gpu", "gpu", id)
	}
	return 0
}

func kfdSetMemoryPolicy(c *kfdCall) syscall.Errno {
	var args abi.KFDSetMemoryPolicyArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	if args.DefaultPolicy > 1 || args.AlternatePolicy > 1 {
		return c.sim.refuse(syscall.EINVAL, "memory policy", "default", args.DefaultPolicy, "alternate",
			args.AlternatePolicy)
	}
	return kfdCheckGPU(c, args.GPUID)
}

func kfdSetScratchBackingVA(c *kfdCall) syscall.Errno {
	var args abi.KFDSetScratchBackingVAArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	if errno := kfdCheckGPU(c, args.GPUID); errno != 0 {
		return errno
	}
	return c.reply(&args)
}

func kfdSetTrapHandler(c *kfdCall) syscall.Errno {
	var args abi.KFDSetTrapHandlerArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	return kfdCheckGPU(c, args.GPUID)
}

func kfdGetTileConfig(c *kfdCall) syscall.Errno {
	var args abi.KFDGetTileConfigArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	if errno := kfdCheckGPU(c, args.GPUID); errno != 0 {
		return errno
	}
	args.NumTileConfigs, args.NumMacroTileConfigs = 0, 0
	args.GBAddrConfig, args.NumBanks, args.NumRanks = 0x22010042, 0, 0
	return c.reply(&args)
}

func kfdRuntimeEnable(c *kfdCall) syscall.Errno {
	var args abi.KFDRuntimeEnableArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	return c.reply(&args)
}
