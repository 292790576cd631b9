package kfdsim

import (
	"syscall"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

const maxQueues = 1024

func kfdCreateQueue(c *kfdCall) syscall.Errno {
	var args abi.KFDCreateQueueArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	s := c.sim
	q := &queue{
		sim: s, proc: c.proc, ringBase: args.RingBaseAddress, ringSize: uint64(args.RingSize),
		rptrAddr: args.ReadPointerAddress, wptrAddr: args.WritePointerAddress,
		percent: args.QueuePercentage & 0xff, priority: args.QueuePriority,
		eopAddr: args.EOPBufferAddress, eopSize: uint32(args.EOPBufferSize),
		cwsrAddr: args.CtxSaveRestoreAddress, cwsrSize: args.CtxSaveRestoreSize, ctlStack: args.CtlStackSize,
	}
	switch args.QueueType {
	case abi.KFDQueueComputeAQL:
		q.kind = queueAQL
	case abi.KFDQueueSDMA:
		q.kind = queueSDMA
	case abi.KFDQueueSDMAXGMI:
		q.kind = queueSDMAXGMI
	case abi.KFDQueueCompute:
		return s.refuse(syscall.EINVAL, "PM4 compute queues are not modelled")
	default:
		return s.refuse(syscall.EINVAL, "queue type", "type", args.QueueType)
	}
	c.proc.mu.Lock()
	defer c.proc.mu.Unlock()
	s.mu.Lock()
	defer s.unlock()
	var errno syscall.Errno
	if q.pdd, errno = c.proc.bound(args.GPUID); errno != 0 {
		return errno
	}
	if errno := q.check(); errno != 0 {
		return errno
	}
	if errno := q.add(nil, nil); errno != 0 {
		return errno
	}
	args.QueueID = q.id
	args.DoorbellOffset = q.pdd.doorbells.off + uint64(q.doorbell)*8
	return c.reply(&args)
}

// check holds a queue's properties to what the driver asks
// (set_queue_properties_from_user and kfd_queue_acquire_buffers).
//
// Preconditions: Sim.mu is held.
func (q *queue) check() syscall.Errno {
	refuse := func(why string) syscall.Errno {
		return q.sim.refuse(syscall.EINVAL, why, "pid", q.proc.pid, "ring", q.ringBase, "size", q.ringSize, "percent",
			q.percent, "priority", q.priority)
	}
	if q.percent > abi.KFDMaxQueuePercentage {
		return refuse("queue percentage above 100")
	}
	if q.priority > abi.KFDMaxQueuePriority {
		return refuse("queue priority above 15")
	}
	if q.ringSize&(q.ringSize-1) != 0 || q.ringSize > 0 && q.ringSize < abi.KFDMinQueueRingSize {
		return refuse("ring size is not a power of two, or too small")
	}
	if q.ringSize > 0 {
		if errno := q.wholeBO(q.ringBase, pageAlign(q.ringSize), "ring"); errno != 0 {
			return errno
		}
	}
	if errno := q.wholeBO(q.rptrAddr&^(pageSize-1), pageSize, "read pointer"); errno != 0 {
		return errno
	}
	if errno := q.wholeBO(q.wptrAddr&^(pageSize-1), pageSize, "write pointer"); errno != 0 {
		return errno
	}
	return q.checkSaveArea()
}

// checkSaveArea asks for what waves are saved to, if the queue has it: a size that follows
// from the GPU's units, and a mapping of one such area for each of its dies.
//
// Preconditions: Sim.mu is held.
func (q *queue) checkSaveArea() syscall.Errno {
	if q.kind != queueAQL || q.cwsrAddr == 0 {
		return 0
	}
	stack, area, debug := q.pdd.gpu.saveArea()
	if q.ctlStack != stack || q.cwsrSize < area {
		return q.sim.refuse(syscall.EINVAL, "area for waves of another size", "control stack", q.ctlStack, "expected",
			stack, "area", q.cwsrSize, "at least", area)
	}
	return q.wholeBO(q.cwsrAddr, pageAlign(uint64(q.cwsrSize+debug)*uint64(q.pdd.gpu.xccs())), "area for waves")
}

// wholeBO asks for a mapping of exactly this range. Preconditions: Sim.mu is
// held.
func (q *queue) wholeBO(va, size uint64, what string) syscall.Errno {
	v := q.pdd.drm.vm
	i := v.find(va)
	if i == len(v.maps) || v.maps[i].va != va || v.maps[i].size != size {
		return q.sim.refuse(syscall.EINVAL, "no mapping is exactly the queue's "+what, "va", va, "size", size)
	}
	return 0
}

// add gives the queue an id and a doorbell, those named when restoring, and
// starts it.
//
// Preconditions: Sim.mu is held; q.pdd has doorbells.
func (q *queue) add(id, doorbell *uint32) syscall.Errno {
	p, d := q.proc, q.pdd
	if id != nil {
		if q.id = *id; p.queues[q.id] != nil || q.id >= maxQueues {
			return q.sim.refuse(syscall.EINVAL, "queue id to restore is taken or out of range", "id", q.id)
		}
	} else {
		for q.id = 1; p.queues[q.id] != nil; q.id++ {
			if q.id == maxQueues-1 {
				return q.sim.refuse(syscall.ENOMEM, "too many queues")
			}
		}
	}
	if doorbell != nil {
		if q.doorbell = *doorbell; q.doorbell >= uint32(len(d.doorUsed)) || d.doorUsed[q.doorbell] {
			return q.sim.refuse(syscall.EINVAL, "doorbell to restore is taken or out of range", "doorbell", q.doorbell)
		}
	} else {
		for d.doorUsed[q.doorbell] {
			if q.doorbell++; q.doorbell == uint32(len(d.doorUsed)) {
				return q.sim.refuse(syscall.ENOMEM, "no doorbell left")
			}
		}
		storeWord(d.doorbells.mem, uint64(q.doorbell)*8, 0)
	}
	d.doorUsed[q.doorbell] = true
	p.queues[q.id] = q
	q.start()
	return 0
}

func kfdDestroyQueue(c *kfdCall) syscall.Errno {
	var args abi.KFDDestroyQueueArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	c.proc.mu.Lock()
	defer c.proc.mu.Unlock()
	c.sim.mu.Lock()
	q := c.proc.queues[args.QueueID]
	if q == nil {
		c.sim.unlock()
		return c.sim.refuse(syscall.EINVAL, "no such queue", "id", args.QueueID)
	}
	delete(c.proc.queues, q.id)
	q.pdd.doorUsed[q.doorbell] = false
	c.sim.unlock()
	q.close()
	return 0
}

func kfdUpdateQueue(c *kfdCall) syscall.Errno {
	var args abi.KFDUpdateQueueArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	c.proc.mu.Lock()
	defer c.proc.mu.Unlock()
	c.sim.mu.Lock()
	defer c.sim.unlock()
	q := c.proc.queues[args.QueueID]
	if q == nil {
		return c.sim.refuse(syscall.EINVAL, "no such queue", "id", args.QueueID)
	}
	next := &queue{sim: q.sim, proc: q.proc, pdd: q.pdd, ringBase: args.RingBaseAddress,
		ringSize: uint64(args.RingSize), kind: queueSDMA, // only ring, percentage and priority are new
		rptrAddr: q.rptrAddr, wptrAddr: q.wptrAddr, percent: args.QueuePercentage & 0xff, priority: args.QueuePriority}
	if errno := next.check(); errno != 0 {
		return errno
	}
	q.ringBase, q.ringSize, q.percent, q.priority = next.ringBase, next.ringSize, next.percent, next.priority
	return 0
}
