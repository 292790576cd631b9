package uffd

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

// memory is one address space being filled: a userfaultfd and what is known of
// the space behind it. The goroutine in run is the only one that reads the
// userfaultfd.
//
// A filler decides what goes where and does the ioctl with mu held for reading; events are read and applied under mu
// held for writing. So no page is filled by what was decided before an event that has been read. And while one has not,
// the kernel refuses with EAGAIN.
type memory struct {
	srv  *Server
	id   uint64
	fd   int
	task *process // who to kill; nil for a forked child
	// parent is the task that forked it; nil for others, and for a child's child.
	parent *process
	// refused is why the memory must not be served any more, as where its task was killed, or it is not known what a
	// forked child may have: what it lacks is poisoned. Guarded by mu.
	refused error
	name    string // for logs
	vmas    []criuimg.VMA
	first   []prefetch.Range // see PlanTask
	// pagemap tells of guard pages; nil when nobody can, as of a forked child.
	pagemap *pagemap

	mu sync.RWMutex
	// space and unsettled: an event has been read since the space was last
	// quiet. No page is filled meanwhile.
	space     *space
	unsettled bool
	// closed: no ioctl may be made any more, the descriptor is closed.
	closed bool
	// known are pages found registered by a fault. Guarded by knownMu.
	knownMu sync.Mutex
	known   []uint64

	gone   atomic.Bool // no process has it, or its reports cannot be read
	exited atomic.Bool // the task has; another process may share its memory. Set by run.
	wakeup *eventFD    // makes run look around
	// lacking: the last report could not be read for want of descriptors or of memory. Nothing can be filled in until
	// it has been, so others do not wait for that. Set by run.
	lacking atomic.Bool
	// waiting are faults to be handled. Owned by run.
	waiting []uint64
}

// settlePause is how long run waits between two looks at whether an unsettled
// space is quiet: it grows from the first to the second.
const (
	settlePause    = 5 * time.Microsecond
	settlePauseMax = time.Millisecond
	settleSpins    = 50
)

// A thread that is preempted between its call and its report is overtaken by the
// calls of others; when these reuse its addresses, no order of reports tells any
// more what went where. Whose report is unread waits. So while the space is not
// quiet each further report is left unread a little longer: late ones get in.
// An mremap, of two reports, waits latePause once.
const (
	latePause    = 500 * time.Microsecond
	latePauseMax = 4 * time.Millisecond
)

// zeroBytes bounds how much memory without contents one fault brings in.
const zeroBytes = 64 << 10

// run reads faults and events until the memory is complete or its process gone,
// and reports whether it is complete.
func (m *memory) run() bool {
	defer m.srv.left(m)
	if m.task == nil {
		m.mu.RLock()
		err := m.refused
		m.mu.RUnlock()
		if err == nil {
			err = m.wipe()
		}
		if err != nil {
			m.refuse(err)
		}
	}
	buf := make([]message, 64)
	pause, late := settlePause, latePause
	for {
		m.mu.RLock()
		unsettled, inOrder := m.unsettled, m.space.forked
		m.mu.RUnlock()
		switch {
		case m.gone.Load():
			return false
		case m.srv.idle():
			time.Sleep(settlePauseMax)
			continue
		case unsettled:
			ready, err := waitReadable(pause, m.fd)
			pause = min(2*pause, settlePauseMax)
			if err == nil && ready[0] && !inOrder {
				time.Sleep(late)
				late = min(2*late, latePauseMax)
			}
		case len(m.waiting) > 0:
			// An event came while they were being handled.
			waitReadable(settlePause, m.fd)
		default:
			pause, late = settlePause, latePause
			if m.complete() {
				return true
			}
			if err := m.wait(); err != nil {
				m.giveUp(fmt.Errorf("wait for its page faults: %w", err))
				return false
			}
		}
		events, err := m.read(buf)
		if err != nil {
			m.giveUp(fmt.Errorf("read its page faults: %w", err))
			return false
		}
		if events {
			pause = settlePause
		}
		m.poisonLacking()
		m.handleFaults()
		if m.lacking.Load() {
			time.Sleep(lackPause)
		}
	}
}

// lookPause is how often wait looks for what nothing reports: the end of an
// address space whose processes are not known, and of an mremap or munmap that
// failed after fills had been refused because of it.
const lookPause = 20 * time.Millisecond

// wait sleeps until there is something to read or to look at.
func (m *memory) wait() error {
	fds := []int{m.fd, m.wakeup.fd}
	if m.task != nil && !m.exited.Load() {
		fds = append(fds, m.task.pidfd)
	}
	unknown := m.task == nil || m.exited.Load()
	var timeout time.Duration
	// A report that could not be read is withdrawn when its thread is killed: nothing tells of that.
	if unknown || m.lacking.Load() || m.srv.finished.Load() && m.space.left.Load() == 0 {
		timeout = lookPause
	}
	ready, err := waitReadable(timeout, fds...)
	switch {
	case prefetch.IsLack(err):
		// Reading and the probe tell what there is.
		time.Sleep(lookPause)
		unknown = true
	case err != nil:
		return err
	}
	if ready[1] {
		m.wakeup.clear()
	}
	if len(ready) > 2 && ready[2] {
		m.exited.Store(true)
		unknown = true
	}
	// Another process may share an exited task's memory, and nobody tells of
	// the end of a forked child. A memory without any process can neither be
	// filled nor complete its events.
	if unknown && !ready[0] && uffdProbe(m.fd, pageSize, pageSize) == unix.ESRCH {
		m.gone.Store(true)
	}
	return nil
}

// read takes what is pending and settles the space if it can. It reports
// whether there were events. The report of a fork brings a descriptor: where there
// is none left, or no memory, the kernel keeps the report, and the fork waits.
func (m *memory) read(buf []message) (events bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.srv.idle() {
		return false, nil
	}
	n, err := readMessages(m.fd, buf)
	switch {
	case err == nil || err == unix.EAGAIN || err == unix.EINTR:
	case prefetch.IsLack(err):
		if !m.lacking.Swap(true) {
			m.srv.log.Error("cannot read a report yet, its thread waits; "+
				"let the guardian have more descriptors (RLIMIT_NOFILE) or memory", "task", m.name, "err", err)
		}
		return false, nil
	default:
		return false, err
	}
	for _, msg := range buf[:n] {
		if msg.event == eventFault {
			m.waiting = append(m.waiting, msg.faultAddr()&^(pageSize-1))
			m.srv.stats.faults.Add(1)
			continue
		}
		if !events {
			events = true
			m.learn()
		}
		m.apply(&msg)
	}
	if events {
		m.unsettled = true
	}
	// Faults are read before the report that could not be.
	if (events || err == unix.EAGAIN) && m.lacking.CompareAndSwap(true, false) {
		m.wake() // what came meanwhile for those who wait was not filled in
	}
	if m.unsettled {
		m.settle(events)
	}
	return events, nil
}

// wake lets all waiting threads fault again. Preconditions: mu is held.
func (m *memory) wake() {
	if ps := m.space.live.byAddr; len(ps) > 0 {
		uffdWake(m.fd, ps[0].start, ps[len(ps)-1].end-ps[0].start) // what lies between need not be registered
	}
}

// apply follows one event. Waiting threads are woken wherever contents were
// displaced: they fault again at what is there now. Preconditions: mu is held
// for writing.
func (m *memory) apply(msg *message) {
	m.srv.stats.events.Add(1)
	switch msg.event {
	case eventFork:
		m.srv.adopt(m, msg.forkFD())
	case eventRemap:
		from, to, n := msg.remap()
		m.space.remap(from, to, n)
		uffdWake(m.fd, from, n)
	case eventRemove:
		start, end := msg.span()
		m.space.remove(start, end)
		uffdWake(m.fd, start, end-start)
	case eventUnmap:
		start, end := msg.span()
		m.space.unmap(start, end)
		uffdWake(m.fd, start, end-start)
	}
}

// settle looks whether the space is quiet. Right after an event it looks for
// a while, since its thread is about to notice that it may go on.
// Preconditions: mu is held for writing.
func (m *memory) settle(insist bool) {
	for range settleSpins {
		if quiet(m.fd) {
			m.unsettled = !m.space.settle(m.probe)
			return
		}
		if !insist {
			return
		}
		runtime.Gosched()
	}
}

func (m *memory) probe(start, end uint64) (yes, sure bool) {
	switch uffdProbe(m.fd, start, end-start) {
	case unix.EAGAIN:
		return false, false
	case unix.ENOENT, unix.ESRCH:
		return false, true
	}
	return true, true
}

// learn tells the space what faults have shown. Preconditions: mu is held for
// writing, the space is settled or was when the faults were handled.
func (m *memory) learn() {
	m.knownMu.Lock()
	defer m.knownMu.Unlock()
	for _, addr := range m.known {
		m.space.areas.fill(addr, addr+pageSize, install{})
	}
	m.known = m.known[:0]
}

// handleFaults finds for each waiting fault where its page comes from.
func (m *memory) handleFaults() {
	for len(m.waiting) > 0 {
		if !m.handleFault(m.waiting[0]) {
			return
		}
		m.waiting = m.waiting[1:]
	}
}

// handleFault returns false when the fault has to wait for an event.
func (m *memory) handleFault(addr uint64) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.unsettled {
		return false
	}
	if file, off, ok := m.space.find(addr); ok {
		if m.refused == nil {
			m.srv.demand(file, off)
		}
		return true
	}
	// Registered but without contents: it reads as zero. Or it has been
	// filled meanwhile, or is gone.
	n := m.space.empty(addr, zeroBytes)
	done, errno := uffdZero(m.fd, addr, n)
	if done == 0 && errno == unix.ENOENT && n > pageSize {
		done, errno = uffdZero(m.fd, addr, pageSize)
	}
	if done > 0 {
		errno = 0
	}
	switch errno {
	case 0:
		m.srv.stats.zeroFaults.Add(1)
		m.knownMu.Lock()
		m.known = append(m.known, addr)
		m.knownMu.Unlock()
	case unix.EAGAIN:
		return false
	case unix.ESRCH:
		m.gone.Store(true)
	default:
		uffdWake(m.fd, addr, pageSize)
	}
	return true
}

// complete reports whether nothing can be missing any more: the restore is
// finished or given up, every page filled or given up, and no fork outstanding,
// whose child would be left without a server.
func (m *memory) complete() bool {
	if !m.srv.finished.Load() && !m.srv.stopped() || m.space.left.Load() > 0 {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.unsettled && m.space.left.Load() == 0 && quiet(m.fd)
}

// giveUp ends a task whose reports cannot be read, or takes from a forked child what it lacks. It returns when nobody
// has the memory any more, as what is missing would read as zero once the userfaultfd is closed, or nothing is missing.
func (m *memory) giveUp(err error) {
	m.setGone() // nothing is filled in any more, nor asked for
	m.srv.kill(m, err)
	for !m.ended() && (!m.srv.stopped() || m.space.left.Load() > 0 || !quiet(m.fd)) {
		if m.task == nil || m.exited.Load() {
			time.Sleep(lookPause)
		} else if ready, err := waitReadable(lookPause, m.task.pidfd); err == nil && ready[0] {
			m.exited.Store(true)
		}
		m.poisonLacking()
	}
}

// ended reports whether no process has the memory any more.
func (m *memory) ended() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.closed || uffdProbe(m.fd, pageSize, pageSize) == unix.ESRCH
}

// close gives the userfaultfd up: what has not been filled reads as zero. Preconditions: no process has the memory any
// more, or nothing is missing.
func (m *memory) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.closed = true
		unix.Close(m.fd)
		m.pagemap.close()
		m.wakeup.close()
	}
}

// demandFirst asks for what others may read from outside, as far as it is missing.
func (m *memory) demandFirst() {
	for _, r := range m.first {
		if m.lacks(r) {
			m.srv.supplier.Demand(r, true)
		}
	}
}
