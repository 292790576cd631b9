package kfdsim

import (
	"slices"
	"sync"
	"syscall"
)

// kfdProcess is what the KFD keeps for one process: it begins when the process
// first opens /dev/kfd and ends when the process does, not when it closes the
// file.
type kfdProcess struct {
	sim   *Sim
	pid   int    // thread group, in the simulator's namespace
	start string // when it began: a pid alone may be used again
	vpid  int    // in the process's own namespace
	slot  int    // names its doorbell pages
	// gone is closed when nothing of the process is left.
	gone chan struct{}

	mu sync.Mutex // one ioctl at a time, as kfd_process.mutex

	// Sim.mu guards the rest.
	dead   bool
	xnack  bool
	pdds   []*pdd
	queues map[uint32]*queue
	svm    []*svmRange
	// restoredSVM are ranges that RESTORE brought and RESUME has yet to apply.
	restoredSVM []*svmRange
	events      eventTable
	// evictions counts the reasons for queues to stand still.
	evictions int
	// queuesPaused is set between PROCESS_INFO and UNPAUSE.
	queuesPaused bool
	// blockNotify is set between RESTORE and RESUME.
	blockNotify bool
}

// pdd is a process on one GPU (kfd_process_device).
type pdd struct {
	proc *kfdProcess
	gpu  *gpu
	// userID is the gpu_id the process knows: another one than the device's
	// after a restore onto other hardware.
	userID    uint32
	drm       *drmFile // set by ACQUIRE_VM or RESTORE
	mem       map[int]*kfdMem
	doorbells *bo
	doorUsed  [doorbellSlice / 8]bool
}

// kfdMem is an allocation of the process: a BO, its address and where it is
// mapped.
type kfdMem struct {
	pdd    *pdd
	handle int
	bo     *bo // held
	va     uint64
	flags  uint32 // KFD_IOC_ALLOC_MEM_FLAGS_*
	mapped []*pdd
}

// openKFD returns the KFD process of the caller, made on its first open. A
// process that has just ended and left its pid to the caller is waited for.
func (s *Sim) openKFD(c caller) (*kfdProcess, syscall.Errno) {
	st, err := readStatus(c.tid)
	if err != nil {
		return nil, s.refuse(syscall.ESRCH, err.Error())
	}
	start, err := startTime(st.tgid)
	if err != nil {
		return nil, s.refuse(syscall.ESRCH, err.Error())
	}
	vpid := st.nspid[len(st.nspid)-1]
	for {
		s.mu.Lock()
		if p := s.procs[st.tgid]; p != nil && p.start == start {
			s.unlock()
			return p, 0
		}
		old := s.leftover(st.tgid, vpid)
		if old == nil {
			p, errno := s.newProcess(st.tgid, vpid, start)
			s.unlock()
			return p, errno
		}
		s.unlock()
		<-old.gone
	}
}

// leftover finds a process that has ended, or is about to be found so, whose
// pid or pages the next one would take over.
//
// Preconditions: Sim.mu is held.
func (s *Sim) leftover(pid, vpid int) *kfdProcess {
	for _, p := range s.slots {
		if p.pid == pid {
			return p
		}
		if p.vpid == vpid {
			if now, err := startTime(p.pid); err != nil || now != p.start {
				return p
			}
		}
	}
	return nil
}

// newProcess makes a KFD process. Preconditions: Sim.mu is held.
func (s *Sim) newProcess(pid, vpid int, start string) (*kfdProcess, syscall.Errno) {
	if s.closed {
		return nil, syscall.ENODEV
	}
	slot := 0
	for s.slots[slot] != nil {
		slot++
	}
	if slot >= maxSimProcess {
		return nil, s.refuse(syscall.ENOMEM, "too many processes")
	}
	p := &kfdProcess{
		sim: s, pid: pid, start: start, vpid: vpid, slot: slot, gone: make(chan struct{}),
		queues: map[uint32]*queue{}, events: newEventTable(),
	}
	for _, g := range s.gpus {
		p.pdds = append(p.pdds, &pdd{proc: p, gpu: g, userID: g.cfg.ID, mem: map[int]*kfdMem{}})
	}
	if err := s.watch.add(pid); err != nil {
		return nil, s.refuse(syscall.ESRCH, err.Error())
	}
	s.procs[pid], s.slots[slot] = p, p
	s.log.Debug("process opened kfd", "pid", pid, "slot", slot)
	return p, 0
}

// processExited ends what the KFD kept for a process.
func (s *Sim) processExited(pid int) {
	s.mu.Lock()
	p := s.procs[pid]
	delete(s.procs, pid)
	s.unlock()
	if p != nil {
		p.teardown()
	}
}

// teardown stops the queues, then frees memory and address spaces.
func (p *kfdProcess) teardown() {
	s := p.sim
	p.mu.Lock()
	defer p.mu.Unlock()
	s.mu.Lock()
	if p.dead {
		s.unlock()
		return
	}
	p.dead = true
	p.events.wakeAll()
	var queues []*queue
	for _, q := range p.queues {
		queues = append(queues, q)
	}
	clear(p.queues)
	s.unlock()
	for _, q := range queues {
		q.close()
	}
	s.mu.Lock()
	for _, d := range p.pdds {
		for _, m := range d.mem {
			s.dropMem(m)
		}
		clear(d.mem)
		if d.drm != nil {
			s.putDRMFile(d.drm)
			d.drm = nil
		}
	}
	var doorbells []*bo
	for _, d := range p.pdds {
		if d.doorbells != nil {
			doorbells = append(doorbells, d.doorbells)
			s.putBO(d.doorbells)
			d.doorbells = nil
		}
	}
	page := p.events.page
	p.events = newEventTable()
	s.unlock()
	for _, b := range doorbells {
		<-b.freed
	}
	if page.bo != nil {
		s.mu.Lock()
		s.putBO(page.bo)
		s.unlock()
	} else if page.mem != nil {
		if err := s.kfd.free(page.off, page.mem); err != nil {
			s.log.Error("free event page", "pid", p.pid, "err", err)
		}
	}
	// Only now may the next process have the slot, whose pages are empty.
	s.mu.Lock()
	delete(s.slots, p.slot)
	s.unlock()
	close(p.gone)
	s.log.Debug("process ended", "pid", p.pid)
}

// dropMem unmaps an allocation everywhere and puts its BO.
//
// Preconditions: Sim.mu is held.
func (s *Sim) dropMem(m *kfdMem) {
	for _, d := range m.mapped {
		if d.drm != nil {
			s.unmapAt(d.drm.vm, m.va, m)
		}
	}
	m.mapped = nil
	s.putBO(m.bo)
}

// pddByID finds a GPU by the id the process knows it by.
//
// Preconditions: Sim.mu is held.
func (p *kfdProcess) pddByID(userID uint32) *pdd {
	for _, d := range p.pdds {
		if d.userID == userID {
			return d
		}
	}
	return nil
}

// bound finds a GPU that the process acquired an address space on. errno is
// EINVAL for an unknown gpu id, ENODEV before ACQUIRE_VM.
//
// Preconditions: Sim.mu is held.
func (p *kfdProcess) bound(userID uint32) (*pdd, syscall.Errno) {
	d := p.pddByID(userID)
	if d == nil {
		return nil, p.sim.refuse(syscall.EINVAL, "no such gpu", "gpu", userID)
	}
	if d.drm == nil {
		return nil, p.sim.refuse(syscall.ENODEV, "gpu used before its vm was acquired", "gpu", userID)
	}
	return d, 0
}

// ensureDoorbells makes the process's doorbell page on a GPU.
//
// Preconditions: Sim.mu is held.
func (d *pdd) ensureDoorbells() syscall.Errno {
	if d.doorbells != nil {
		return 0
	}
	s := d.proc.sim
	off := mmapOffset(mmapDoorbell, d.gpu.cfg.ID, d.proc.slot)
	mem, err := s.kfd.mapRange(off, doorbellSlice)
	if err != nil {
		return s.refuse(syscall.ENOMEM, err.Error())
	}
	d.doorbells = s.addBO(&bo{gpu: d.gpu, kind: boDoorbell, size: doorbellSlice, off: off, mem: mem, noCPU: true,
		freed: make(chan struct{})})
	return 0
}

// evict stops the queues for one more reason and waits until none is amid a
// packet.
func (p *kfdProcess) evict() {
	s := p.sim
	s.mu.Lock()
	p.evictions++
	queues := p.sortedQueues()
	s.unlock()
	for _, q := range queues {
		q.settle()
	}
}

// unevict takes one reason back.
func (p *kfdProcess) unevict() {
	p.sim.mu.Lock()
	if p.evictions > 0 {
		p.evictions--
	}
	p.sim.unlock()
}

// sortedQueues returns the queues by id. Preconditions: Sim.mu is held.
func (p *kfdProcess) sortedQueues() []*queue {
	queues := make([]*queue, 0, len(p.queues))
	for _, q := range p.queues {
		queues = append(queues, q)
	}
	slices.SortFunc(queues, func(a, b *queue) int { return int(a.id) - int(b.id) })
	return queues
}

// sortedMem returns the allocations on a GPU by handle, the driver's order.
//
// Preconditions: Sim.mu is held.
func (d *pdd) sortedMem() []*kfdMem {
	mem := make([]*kfdMem, 0, len(d.mem))
	for _, m := range d.mem {
		mem = append(mem, m)
	}
	slices.SortFunc(mem, func(a, b *kfdMem) int { return a.handle - b.handle })
	return mem
}
