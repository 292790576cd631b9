package kfdsim

import (
	"encoding/binary"
	"syscall"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// Bounds of what a RESTORE may bring, so that a wrong count fails at once.
const (
	maxRestoreBOs  = 1 << 20
	maxRestorePriv = 1 << 30
)

// criuRestore makes the caller the process that a checkpoint describes. What a
// failed restore made stays until the process ends, as in the driver.
func (c *kfdCall) criuRestore(args *abi.KFDCRIUArgs) syscall.Errno {
	s := c.sim
	if args.BOs == 0 || args.Devices == 0 || args.PrivData == 0 || args.PrivDataSize == 0 || args.NumDevices == 0 ||
		args.NumBOs == 0 {
		return s.refuse(syscall.EINVAL, "restore without devices, bos or private data")
	}
	if args.NumBOs > maxRestoreBOs || args.PrivDataSize > maxRestorePriv || args.NumDevices > abi.KFDMaxGPUInstance {
		return s.refuse(syscall.EINVAL, "restore of too much", "bos", args.NumBOs, "priv_data", args.PrivDataSize)
	}
	devBuf := make([]byte, args.NumDevices*16)
	boBuf := make([]byte, uint64(args.NumBOs)*48)
	priv := make([]byte, args.PrivDataSize)
	for _, r := range []struct {
		addr uint64
		buf  []byte
	}{{args.Devices, devBuf}, {args.BOs, boBuf}, {args.PrivData, priv}} {
		if errno := c.who.readUser(r.addr, r.buf); errno != 0 {
			return errno
		}
	}
	devices := make([]abi.KFDCRIUDeviceBucket, args.NumDevices)
	buckets := make([]abi.KFDCRIUBoBucket, args.NumBOs)
	if abi.Decode(devBuf, devices) != nil || abi.Decode(boBuf, buckets) != nil {
		return syscall.EINVAL
	}
	p := c.proc
	p.mu.Lock()
	defer p.mu.Unlock()
	p.evict()
	rest, errno := c.restoreHead(priv, devices)
	if errno != 0 {
		return errno
	}
	if errno := s.injected(abi.KFDIocCRIUOp.String()+" "+restoreBound, c.file); errno != 0 {
		return errno
	}
	if rest, errno = c.restoreBOs(rest, buckets); errno != 0 {
		c.sim.dropTokens(c.file)
		return errno
	}
	boBuf = boBuf[:0]
	for i := range buckets {
		boBuf = appendStruct(boBuf, &buckets[i])
	}
	errno = c.who.writeUser(args.BOs, boBuf)
	for i := uint32(0); i < args.NumObjects && errno == 0; i++ {
		rest, errno = p.restoreObject(rest)
	}
	if errno == 0 && len(rest) != 0 {
		errno = s.refuse(syscall.EINVAL, "private data is longer than its objects", "left", uint64(len(rest)))
	}
	if errno != 0 {
		c.sim.dropTokens(c.file)
		return errno
	}
	return c.reply(args)
}

// cut takes a record off the private data.
func (s *Sim) cut(priv *[]byte, size int, v any) syscall.Errno {
	if len(*priv) < size || abi.Decode((*priv)[:size], v) != nil {
		return s.refuse(syscall.EINVAL, "private data is cut off")
	}
	*priv = (*priv)[size:]
	return 0
}

func (c *kfdCall) restoreHead(priv []byte, devices []abi.KFDCRIUDeviceBucket) ([]byte, syscall.Errno) {
	s, p := c.sim, c.proc
	var head abi.KFDPrivProcess
	if errno := s.cut(&priv, privProcessSize, &head); errno != 0 {
		return nil, errno
	}
	if head.Version != abi.KFDPrivVersion {
		return nil, s.refuse(syscall.EINVAL, "private data of another version", "version", head.Version)
	}
	if head.XNACKMode != 0 && !p.xnackSupported() {
		return nil, s.refuse(syscall.EPERM, "xnack mode cannot be set")
	}
	if len(devices) != len(p.pdds) {
		return nil, s.refuse(syscall.EINVAL, "restore of another number of devices than this process sees", "devices",
			len(devices), "here", len(p.pdds))
	}
	if len(priv) < len(devices)*privDeviceSize {
		return nil, s.refuse(syscall.EINVAL, "private data is cut off")
	}
	priv = priv[len(devices)*privDeviceSize:]
	files := make([]*openFile, len(devices))
	for i, d := range devices {
		if d.UserGPUID == 0 {
			return nil, s.refuse(syscall.EINVAL, "restore with user gpu id 0")
		}
		f, errno := s.fileOf(c.who, int(int32(d.DRMFD)))
		if errno != 0 {
			return nil, s.refuse(syscall.EINVAL, "restore without a render node file", "gpu", d.ActualGPUID)
		}
		files[i] = f
	}
	s.mu.Lock()
	defer s.unlock()
	p.xnack = head.XNACKMode != 0
	for i, d := range devices {
		g := s.gpuByID(d.ActualGPUID)
		if g == nil {
			return nil, s.refuse(syscall.EINVAL, "no such gpu", "gpu", d.ActualGPUID)
		}
		var at *pdd
		for _, pd := range p.pdds {
			if pd.gpu == g {
				at = pd
			}
		}
		at.userID = d.UserGPUID
		if at.drm != nil {
			return nil, s.refuse(syscall.EINVAL, "restore into a process that has acquired a vm", "gpu", d.ActualGPUID)
		}
		if errno := s.initVM(at, files[i]); errno != 0 {
			return nil, syscall.EINVAL
		}
	}
	return priv, 0
}

// restoreBOs makes the BOs, maps them to their GPUs and exports those with
// contents.
func (c *kfdCall) restoreBOs(priv []byte, buckets []abi.KFDCRIUBoBucket) ([]byte, syscall.Errno) {
	s, p := c.sim, c.proc
	if len(priv) < len(buckets)*privBOSize {
		return nil, s.refuse(syscall.EINVAL, "private data is cut off")
	}
	s.mu.Lock()
	p.blockNotify = true
	s.unlock()
	held := make([]*bo, 0, len(buckets))
	defer func() {
		s.mu.Lock()
		s.putList(held)
		s.unlock()
	}()
	for i := range buckets {
		var rec abi.KFDPrivBO
		if errno := s.cut(&priv, privBOSize, &rec); errno != 0 {
			return nil, errno
		}
		b, errno := p.restoreBO(&buckets[i], &rec)
		if errno != 0 {
			return nil, errno
		}
		held = append(held, b)
	}
	return priv, c.exportBuckets(buckets, held)
}

// restoreBO makes one BO, which comes back held.
func (p *kfdProcess) restoreBO(bucket *abi.KFDCRIUBoBucket, rec *abi.KFDPrivBO) (*bo, syscall.Errno) {
	s := p.sim
	s.mu.Lock()
	defer s.unlock()
	d := p.pddByID(bucket.GPUID)
	if d == nil {
		return nil, s.refuse(syscall.ENODEV, "bo of a gpu that is not restored", "gpu", bucket.GPUID)
	}
	m, errno := s.allocMem(d, bucket.Addr, bucket.Size, rec.UserAddr, bucket.AllocFlags)
	if errno != 0 {
		return nil, errno
	}
	m.handle = int(int32(rec.IDRHandle))
	if m.handle < 0 || d.mem[m.handle] != nil {
		s.putBO(m.bo)
		return nil, s.refuse(syscall.ENOMEM, "handle of a bo is taken or negative", "handle", rec.IDRHandle)
	}
	d.mem[m.handle] = m
	if s.opts.CheckFills && (m.bo.kind == boVRAM || m.bo.kind == boGTT) {
		m.bo.missing = gaps{{0, m.bo.size}}
	}
	if m.bo.kind != boUserptr {
		bucket.RestoredOffset = m.bo.off
	}
	for _, id := range rec.MappedGPUIDs[:len(p.pdds)] {
		if id == 0 {
			break
		}
		peer := p.pddByID(id)
		if peer == nil {
			return nil, s.refuse(syscall.EINVAL, "bo mapped to a gpu that is not restored", "gpu", id)
		}
		if errno := s.mapMem(m, peer); errno != 0 {
			return nil, errno
		}
	}
	return m.bo.get(), 0
}

// restoreObject makes the queue, event or SVM range that the private data
// begins with.
func (p *kfdProcess) restoreObject(priv []byte) ([]byte, syscall.Errno) {
	if len(priv) < 4 {
		return nil, p.sim.refuse(syscall.EINVAL, "private data is cut off")
	}
	switch typ := binary.NativeEndian.Uint32(priv); typ {
	case abi.KFDPrivObjectQueue:
		return p.restoreQueue(priv)
	case abi.KFDPrivObjectEvent:
		return p.restoreEvent(priv)
	case abi.KFDPrivObjectSVMRange:
		return p.restoreSVM(priv)
	default:
		return nil, p.sim.refuse(syscall.EINVAL, "object of unknown type", "type", typ)
	}
}

func (p *kfdProcess) restoreQueue(priv []byte) ([]byte, syscall.Errno) {
	s := p.sim
	var rec abi.KFDPrivQueue
	if errno := s.cut(&priv, privQueueSize, &rec); errno != 0 {
		return nil, errno
	}
	q := &queue{
		sim: s, proc: p, ringBase: rec.QAddress, ringSize: rec.QSize, rptrAddr: rec.ReadPtrAddr,
		wptrAddr: rec.WritePtrAddr,
		percent:  rec.QPercent, priority: rec.Priority, eopAddr: rec.EOPRingBufferAddress,
		eopSize:  rec.EOPRingBufferSize,
		cwsrAddr: rec.CtxSaveRestoreAddress, cwsrSize: rec.CtxSaveRestoreSize, ctlStack: rec.CtlStackSize,
		sdmaEngine: rec.SDMAID,
	}
	switch {
	case rec.Type == abi.KFDPrivQueueTypeCompute && rec.Format == abi.KFDPrivQueueFormatAQL:
		q.kind = queueAQL
	case rec.Type == abi.KFDPrivQueueTypeSDMA:
		q.kind = queueSDMA
	case rec.Type == abi.KFDPrivQueueTypeSDMAXGMI:
		q.kind = queueSDMAXGMI
	default:
		return nil, s.refuse(syscall.EINVAL, "queue type not modelled", "type", rec.Type, "format", rec.Format)
	}
	s.mu.Lock()
	defer s.unlock()
	var errno syscall.Errno
	if q.pdd, errno = p.bound(rec.GPUID); errno != 0 {
		return nil, errno
	}
	q.ctlStack /= q.pdd.gpu.xccs() // the record has that of all dies
	if rec.MQDSize != q.mqdSize() || rec.CtlStackSize != q.ctlStackSize() {
		return nil, s.refuse(syscall.EINVAL, "queue state of another gpu", "mqd", rec.MQDSize, "ctl_stack",
			rec.CtlStackSize)
	}
	var state mqd
	body := uint64(rec.MQDSize) + uint64(rec.CtlStackSize)
	if uint64(len(priv)) < body || abi.Decode(priv[:24], &state) != nil || state.Magic != mqdMagic {
		return nil, s.refuse(syscall.EINVAL, "queue's mqd is not one")
	}
	if errno := q.check(); errno != 0 {
		return nil, errno
	}
	q.rptr = state.RPtr
	if rec.DoorbellID < doorbellSlice/8 {
		storeWord(q.pdd.doorbells.mem, uint64(rec.DoorbellID)*8, state.Doorbell)
	}
	return priv[body:], q.add(&rec.QID, &rec.DoorbellID)
}

func (p *kfdProcess) restoreEvent(priv []byte) ([]byte, syscall.Errno) {
	s := p.sim
	var rec abi.KFDPrivEvent
	if errno := s.cut(&priv, privEventSize, &rec); errno != 0 {
		return nil, errno
	}
	s.mu.Lock()
	defer s.unlock()
	if rec.UserHandle != 0 {
		if errno := p.setEventPage(rec.UserHandle); errno != 0 {
			return nil, errno
		}
	}
	if rec.Type > highestEventType {
		return nil, s.refuse(syscall.EINVAL, "event type", "type", rec.Type)
	}
	e := &event{typ: rec.Type, autoReset: rec.AutoReset != 0, signaled: rec.Signaled != 0, exception: rec.Exception}
	return priv, p.addEvent(e, &rec.EventID)
}

func (p *kfdProcess) restoreSVM(priv []byte) ([]byte, syscall.Errno) {
	s := p.sim
	var rec abi.KFDPrivSVMRange
	if errno := s.cut(&priv, privSVMSize, &rec); errno != 0 {
		return nil, errno
	}
	r := &svmRange{start: rec.StartAddr * pageSize, size: rec.Size * pageSize,
		attrs: make([]abi.KFDSVMAttribute, abi.KFDPrivSVMCommonAttrs+len(p.pdds))}
	if errno := s.cut(&priv, 8*len(r.attrs), r.attrs); errno != 0 {
		return nil, errno
	}
	s.mu.Lock()
	defer s.unlock()
	p.restoredSVM = append(p.restoredSVM, r)
	return priv, 0
}
