package kfdsim

import (
	"syscall"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// Sizes of the records in the private data (kfd_priv.h), and of what follows a
// queue's: an MQD of the engine's kind and the control stack.
const (
	privProcessSize = 8
	privDeviceSize  = 8
	privBOSize      = 272
	privQueueSize   = 120
	privEventSize   = 64
	privSVMSize     = 24

	mqdComputeSize = 2048
	mqdSDMASize    = 512
	mqdMagic       = 0x4d514453494d4b46
)

// mqd is what the simulation keeps in a queue's MQD.
type mqd struct {
	Magic    uint64
	RPtr     uint64
	Doorbell uint64
}

// mqdSize is that of all dies: each has an MQD of a compute queue.
func (q *queue) mqdSize() uint32 {
	if q.kind == queueAQL {
		return mqdComputeSize * q.pdd.gpu.xccs()
	}
	return mqdSDMASize
}

// ctlStackSize is the control stack that goes into the private data: compute
// queues have one on each die.
func (q *queue) ctlStackSize() uint32 {
	if q.kind == queueAQL {
		return q.ctlStack * q.pdd.gpu.xccs()
	}
	return 0
}

// criuOps name the operations of CRIU_OP, in [State] and for a [Fault].
var criuOps = map[uint32]string{
	abi.KFDCRIUProcessInfo: "PROCESS_INFO", abi.KFDCRIUCheckpoint: "CHECKPOINT", abi.KFDCRIUUnpause: "UNPAUSE",
	abi.KFDCRIURestore: "RESTORE", abi.KFDCRIUResume: "RESUME",
}

// restoreBound is a RESTORE that has given the process its address spaces: for a [Fault]
// that interrupts one there. The driver refuses the next with EINVAL.
const restoreBound = "RESTORE bound"

func kfdCRIUOp(c *kfdCall) syscall.Errno {
	var args abi.KFDCRIUArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	if errno := c.sim.injected(abi.KFDIocCRIUOp.String()+" "+criuOps[args.Op], c.file); errno != 0 {
		return errno
	}
	errno := c.criuOp(&args)
	if errno == 0 {
		c.sim.mu.Lock()
		c.sim.criuOps[criuOps[args.Op]]++
		c.sim.unlock()
	}
	return errno
}

func (c *kfdCall) criuOp(args *abi.KFDCRIUArgs) syscall.Errno {
	switch args.Op {
	case abi.KFDCRIUProcessInfo:
		return c.criuProcessInfo(args)
	case abi.KFDCRIUCheckpoint:
		return c.criuCheckpoint(args)
	case abi.KFDCRIUUnpause:
		return c.criuUnpause()
	case abi.KFDCRIURestore:
		return c.criuRestore(args)
	case abi.KFDCRIUResume:
		return c.criuResume(args)
	}
	return c.sim.refuse(syscall.EINVAL, "CRIU operation", "op", args.Op)
}

// criuProcessInfo stops the queues and counts what CHECKPOINT will report.
func (c *kfdCall) criuProcessInfo(args *abi.KFDCRIUArgs) syscall.Errno {
	p := c.proc
	p.mu.Lock()
	defer p.mu.Unlock()
	p.evict()
	c.sim.mu.Lock()
	defer c.sim.unlock()
	p.queuesPaused = true
	args.PID = uint32(p.vpid)
	args.NumDevices, args.NumBOs, args.NumObjects, args.PrivDataSize = p.criuCounts()
	return c.reply(args)
}

// checkpointed reports whether an allocation is part of a checkpoint: the
// driver leaves out what lies below the GPU's address range, the trap handler.
func (m *kfdMem) checkpointed() bool { return m.va == 0 || m.va > gpuvmBase }

// criuCounts is criu_get_process_object_info. Preconditions: Sim.mu is held.
func (p *kfdProcess) criuCounts() (devices, bos, objects uint32, priv uint64) {
	devices = uint32(len(p.pdds))
	priv = privProcessSize + uint64(devices)*privDeviceSize
	for _, d := range p.pdds {
		for _, m := range d.mem {
			if m.checkpointed() {
				bos++
			}
		}
	}
	priv += uint64(bos) * privBOSize
	for _, q := range p.queues {
		priv += privQueueSize + uint64(q.mqdSize()) + uint64(q.ctlStackSize())
	}
	priv += uint64(len(p.events.byID)) * privEventSize
	for _, r := range p.svm {
		priv += privSVMSize + 8*uint64(len(r.attrs))
	}
	return devices, bos, uint32(len(p.queues) + len(p.events.byID) + len(p.svm)), priv
}

// criuCheckpoint reports the process's state, with a dmabuf for every BO that
// has contents to save.
func (c *kfdCall) criuCheckpoint(args *abi.KFDCRIUArgs) syscall.Errno {
	if args.Devices == 0 || args.BOs == 0 || args.PrivData == 0 {
		return c.sim.refuse(syscall.EINVAL, "checkpoint without room for devices, bos or private data")
	}
	p := c.proc
	p.mu.Lock()
	defer p.mu.Unlock()
	c.sim.mu.Lock()
	if !p.queuesPaused {
		c.sim.unlock()
		return c.sim.refuse(syscall.EINVAL, "checkpoint without PROCESS_INFO before it", "pid", p.pid)
	}
	devices, bos, objects, size := p.criuCounts()
	if devices != args.NumDevices || bos != args.NumBOs || objects != args.NumObjects || size != args.PrivDataSize {
		c.sim.unlock()
		return c.sim.refuse(syscall.EINVAL, "checkpoint with other counts than PROCESS_INFO gave", "pid", p.pid,
			"devices", args.NumDevices, "bos", args.NumBOs, "objects", args.NumObjects, "priv_data", args.PrivDataSize,
			"expected_bos", bos, "expected_objects", objects, "expected_priv_data", size)
	}
	deviceBuf := p.deviceBuckets()
	priv := p.privHead()
	buckets, boPrivs, held := p.boBuckets()
	priv = append(priv, boPrivs...)
	c.sim.unlock()
	defer func() {
		c.sim.mu.Lock()
		c.sim.putList(held)
		c.sim.unlock()
	}()
	priv = append(priv, p.privObjects()...)

	errno := c.exportBuckets(buckets, held)
	var boBuf []byte
	for i := range buckets {
		boBuf = appendStruct(boBuf, &buckets[i])
	}
	for _, w := range []struct {
		addr uint64
		buf  []byte
	}{{args.Devices, deviceBuf}, {args.PrivData, priv}, {args.BOs, boBuf}} {
		if errno == 0 {
			errno = c.who.writeUser(w.addr, w.buf)
		}
	}
	if errno != 0 {
		c.sim.dropTokens(c.file)
		return errno
	}
	return c.reply(args)
}

// exportBuckets puts a dmabuf into each bucket whose BO has one.
func (c *kfdCall) exportBuckets(buckets []abi.KFDCRIUBoBucket, bos []*bo) syscall.Errno {
	for i, b := range bos {
		buckets[i].DmabufFD = abi.KFDInvalidFD
		if b.kind != boVRAM && b.kind != boGTT {
			continue
		}
		token, errno := c.sim.exportBO(b, c.file)
		if errno != 0 {
			return errno
		}
		buckets[i].DmabufFD = token
	}
	return 0
}

func (p *kfdProcess) deviceBuckets() []byte {
	var buf []byte
	for _, d := range p.pdds {
		buf = appendStruct(buf, &abi.KFDCRIUDeviceBucket{UserGPUID: d.userID, ActualGPUID: d.gpu.cfg.ID})
	}
	return buf
}

func (p *kfdProcess) privHead() []byte {
	head := abi.KFDPrivProcess{Version: abi.KFDPrivVersion}
	if p.xnack {
		head.XNACKMode = 1
	}
	buf := appendStruct(nil, &head)
	for range p.pdds {
		buf = appendStruct(buf, &abi.KFDPrivDevice{})
	}
	return buf
}

// boBuckets lists the allocations in the driver's order: by GPU, then handle.
// The BOs come back held. Preconditions: Sim.mu is held.
func (p *kfdProcess) boBuckets() (buckets []abi.KFDCRIUBoBucket, privs []byte, held []*bo) {
	for _, d := range p.pdds {
		for _, m := range d.sortedMem() {
			if !m.checkpointed() {
				continue
			}
			buckets = append(buckets, abi.KFDCRIUBoBucket{
				Addr: m.va, Size: m.bo.size, Offset: m.bo.off, GPUID: d.userID, AllocFlags: m.flags,
			})
			priv := abi.KFDPrivBO{IDRHandle: uint32(m.handle), UserAddr: m.bo.user.addr}
			n := 0
			for _, peer := range p.pdds {
				for _, at := range m.mapped {
					if at == peer {
						priv.MappedGPUIDs[n] = peer.userID
						n++
					}
				}
			}
			privs = appendStruct(privs, &priv)
			held = append(held, m.bo.get())
		}
	}
	return buckets, privs, held
}

// privObjects is the queues, events and SVM ranges.
func (p *kfdProcess) privObjects() []byte {
	p.sim.mu.Lock()
	queues := p.sortedQueues()
	p.sim.unlock()
	var buf []byte
	for _, q := range queues {
		buf = append(buf, q.priv()...)
	}
	p.sim.mu.Lock()
	defer p.sim.unlock()
	for i, e := range p.events.sorted() {
		rec := abi.KFDPrivEvent{ObjectType: abi.KFDPrivObjectEvent, EventID: e.id, Type: e.typ, Exception: e.exception}
		if i == 0 {
			rec.UserHandle = p.events.page.handle // the first event carries the page
		}
		if e.autoReset {
			rec.AutoReset = 1
		}
		if e.signaled {
			rec.Signaled = 1
		}
		buf = appendStruct(buf, &rec)
	}
	for _, r := range p.svm {
		// Counted in pages, as the driver does.
		buf = appendStruct(buf, &abi.KFDPrivSVMRange{ObjectType: abi.KFDPrivObjectSVMRange,
			StartAddr: r.start / pageSize, Size: r.size / pageSize})
		buf = appendStruct(buf, r.attrs)
	}
	return buf
}

// priv is the queue's record with its MQD and control stack.
func (q *queue) priv() []byte {
	state := mqd{Magic: mqdMagic}
	state.RPtr, _ = q.settle()
	state.Doorbell = loadWord(q.pdd.doorbells.mem, uint64(q.doorbell)*8)
	rec := abi.KFDPrivQueue{
		ObjectType: abi.KFDPrivObjectQueue, QAddress: q.ringBase, QSize: q.ringSize,
		ReadPtrAddr: q.rptrAddr, WritePtrAddr: q.wptrAddr, DoorbellOff: uint64(q.doorbell) * 8,
		EOPRingBufferAddress: q.eopAddr, CtxSaveRestoreAddress: q.cwsrAddr, GPUID: q.pdd.userID,
		QID: q.id, Priority: q.priority, QPercent: q.percent, DoorbellID: q.doorbell,
		EOPRingBufferSize: q.eopSize, CtxSaveRestoreSize: q.cwsrSize,
		CtlStackSize: q.ctlStackSize(), MQDSize: q.mqdSize(), SDMAID: q.sdmaEngine,
	}
	switch q.kind {
	case queueAQL:
		rec.Type, rec.Format = abi.KFDPrivQueueTypeCompute, abi.KFDPrivQueueFormatAQL
	case queueSDMA:
		rec.Type = abi.KFDPrivQueueTypeSDMA
	case queueSDMAXGMI:
		rec.Type = abi.KFDPrivQueueTypeSDMAXGMI
	}
	buf := appendStruct(nil, &rec)
	body := make([]byte, q.mqdSize()+q.ctlStackSize())
	copy(body, appendStruct(nil, &state))
	return append(buf, body...)
}

func (c *kfdCall) criuUnpause() syscall.Errno {
	c.proc.mu.Lock()
	defer c.proc.mu.Unlock()
	c.sim.mu.Lock()
	if !c.proc.queuesPaused {
		c.sim.unlock()
		return c.sim.refuse(syscall.EINVAL, "unpause of a process that is not paused", "pid", c.proc.pid)
	}
	c.proc.queuesPaused = false
	c.sim.unlock()
	c.proc.unevict()
	return 0
}

// criuResume lets the queues of a restored process run, a moment after it has
// returned. The target is named in the caller's pid namespace.
func (c *kfdCall) criuResume(args *abi.KFDCRIUArgs) syscall.Errno {
	pid, err := c.who.resolvePID(int(args.PID))
	if err != nil {
		return c.sim.refuse(syscall.ESRCH, "resume of no process: "+err.Error(), "pid", args.PID)
	}
	c.sim.mu.Lock()
	target := c.sim.procs[pid]
	if target == nil {
		c.sim.unlock()
		return c.sim.refuse(syscall.ESRCH, "resume of a process without kfd", "pid", args.PID)
	}
	if !target.blockNotify {
		c.sim.unlock()
		return c.sim.refuse(syscall.EINVAL, "resume of a process that was not restored, or twice", "pid", args.PID)
	}
	ranges := target.restoredSVM
	c.sim.unlock()
	for _, r := range ranges {
		if errno := target.applySVM(r); errno != 0 {
			return errno
		}
	}
	c.sim.noteStrayMappings(target)
	c.sim.mu.Lock()
	target.blockNotify, target.restoredSVM = false, nil
	target.svm = append(target.svm, ranges...)
	c.sim.unlock()
	// A worker of the driver's looks up the userptr pages first.
	c.sim.wg.Go(func() {
		time.Sleep(resumeDelay)
		target.lookUpUserptrs()
		target.unevict()
	})
	return 0
}

// applySVM holds a range that is to be restored to what the driver asks: its memory is
// mapped, and all there.
func (p *kfdProcess) applySVM(r *svmRange) syscall.Errno {
	if err := checkUserRange(p.pid, r.start, r.size, false); err != nil {
		return p.sim.refuse(syscall.EFAULT, "resume with an svm range that is not mapped: "+err.Error())
	}
	if gone, err := absent(p.pid, r.start, r.size); gone || err != nil {
		return p.sim.refuse(syscall.EFAULT, "resume before userfaultfd has brought an svm range", "pid", p.pid, "start",
			r.start, "err", err)
	}
	return 0
}

// lookUpUserptrs is the worker that finds the pages of restored userptrs. What it does not
// find it leaves out, without a word, for the GPU to fault on. A process that has ended lacks nothing: its queues stop.
func (p *kfdProcess) lookUpUserptrs() {
	s := p.sim
	s.mu.Lock()
	var held []*bo
	for _, d := range p.pdds {
		for _, m := range d.mem {
			if m.bo.kind == boUserptr {
				held = append(held, m.bo.get())
			}
		}
	}
	s.unlock()
	for _, b := range held {
		gone, err := absent(b.user.pid, b.user.addr&^(pageSize-1), b.size)
		s.mu.Lock()
		b.lost = (gone || err != nil) && !noMemory(err)
		s.putBO(b)
		s.unlock()
	}
}

// resumeDelay is how long after RESUME the queues begin to run.
const resumeDelay = 2 * time.Millisecond

// xccs is how many dies the GPU has.
func (g *gpu) xccs() uint32 { return max(g.model.XCCs, 1) }
