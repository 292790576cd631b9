package kfdsim

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// queue is a user mode queue: a ring in the process's memory, with pointers
// beside it and a doorbell. One goroutine carries its packets out, in order.
type queue struct {
	sim  *Sim
	proc *kfdProcess
	pdd  *pdd
	id   uint32

	// What CREATE_QUEUE was told; fixed but for ringBase, ringSize and
	// percent, which UPDATE_QUEUE may set (Sim.mu).
	kind       queueKind
	ringBase   uint64
	ringSize   uint64
	rptrAddr   uint64
	wptrAddr   uint64
	percent    uint32
	priority   uint32
	eopAddr    uint64
	eopSize    uint32
	cwsrAddr   uint64
	cwsrSize   uint32
	ctlStack   uint32
	doorbell   uint32 // index in the slice
	sdmaEngine uint32

	running sync.Mutex // held while a packet is carried out
	// Owned by whoever holds running.
	rptr   uint64 // packets (AQL) or bytes (SDMA) carried out
	failed error  // the queue is hung: a packet faulted

	stop chan struct{}
	done chan struct{}
}

type queueKind int

const (
	queueAQL queueKind = iota
	queueSDMA
	queueSDMAXGMI
)

// idleMax is the longest a queue sleeps between looks at its doorbell,
// in units of Options.DoorbellPoll.
const idleMax = 8

func (q *queue) start() {
	q.stop, q.done = make(chan struct{}), make(chan struct{})
	q.sim.wg.Add(1)
	go q.run()
}

// close ends the queue after the packet under way.
func (q *queue) close() {
	close(q.stop)
	<-q.done
}

// settle waits for the packet under way and returns the packets or bytes done,
// and why the queue hangs, if it does.
func (q *queue) settle() (done uint64, failed error) {
	q.running.Lock()
	defer q.running.Unlock()
	return q.rptr, q.failed
}

func (q *queue) run() {
	defer q.sim.wg.Done()
	defer close(q.done)
	poll := q.sim.opts.DoorbellPoll
	idle := 1
	timer := time.NewTimer(poll)
	defer timer.Stop()
	for {
		select {
		case <-q.stop:
			return
		case <-timer.C:
		}
		worked := false
		for q.step() {
			worked = true
			select {
			case <-q.stop:
				return
			default:
			}
		}
		if worked {
			idle = 1
		} else if idle < idleMax {
			idle++
		}
		timer.Reset(poll * time.Duration(idle))
	}
}

// errBlocked is a packet that must wait for something outside the queue.
var errBlocked = errors.New("blocked")

// step carries out one packet and reports whether there may be another.
func (q *queue) step() bool {
	q.running.Lock()
	defer q.running.Unlock()
	q.sim.mu.Lock()
	idle := q.proc.dead || q.proc.evictions > 0 || q.percent == 0 || q.ringSize == 0 || q.pdd.drm == nil
	var a *access
	base, size := q.ringBase, q.ringSize
	if !idle {
		a = &access{sim: q.sim, vm: q.pdd.drm.vm, proc: q.proc}
	}
	q.sim.unlock()
	if idle || q.failed != nil {
		return false
	}
	wptr := loadWord(q.pdd.doorbells.mem, uint64(q.doorbell)*8)
	var err error
	var more bool
	if q.kind == queueAQL {
		more, err = q.stepAQL(a, base, size, wptr)
	} else {
		more, err = q.stepSDMA(a, base, size, wptr)
	}
	if errors.Is(err, errBlocked) {
		return false
	}
	if err != nil {
		q.fail(err)
		return false
	}
	return more
}

// fail hangs the queue and tells the process; nobody of one that has ended, whose queues
// the driver stops before its memory goes.
//
// Preconditions: q.running is held.
func (q *queue) fail(err error) {
	if q.failed = err; errors.Is(err, unix.ESRCH) {
		return
	}
	s := q.sim
	s.mu.Lock()
	defer s.unlock()
	s.noteGPUError(q.pdd.gpu, q.proc.pid, "queue", err)
	fault := &GPUFault{GPU: q.pdd.gpu.cfg.ID, Reason: err.Error()}
	errors.As(err, &fault)
	q.proc.raiseFault(fault, q.pdd.userID)
}

// stepSDMA carries out what lies between the read pointer and the doorbell, in
// bytes, both running on beyond the ring's size.
func (q *queue) stepSDMA(a *access, base, size, wptr uint64) (bool, error) {
	if wptr == q.rptr {
		return false, nil
	}
	if wptr < q.rptr || wptr-q.rptr > size || wptr%4 != 0 {
		return false, faultf("doorbell %#x with read pointer %#x on a ring of %#x bytes", wptr, q.rptr, size)
	}
	n := min(wptr-q.rptr, 64<<10)
	buf := make([]byte, n)
	first := min(n, size-q.rptr%size)
	if err := a.read(base+q.rptr%size, buf[:first]); err != nil {
		return false, err
	}
	if err := a.read(base, buf[first:]); err != nil {
		return false, err
	}
	x := sdmaRun{access: a, version: q.pdd.gpu.model.SDMA, proc: q.proc}
	used, err := x.packet(buf)
	if err != nil {
		return false, err
	}
	q.rptr += used
	return true, a.writeU64(q.rptrAddr, q.rptr)
}
