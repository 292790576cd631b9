package kfdsim

import (
	"slices"
	"syscall"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// eventTable holds a process's events. Guarded by Sim.mu.
type eventTable struct {
	byID map[uint32]*event
	page eventPage
	// changed is closed and replaced whenever a waiter should look again.
	changed chan struct{}
}

// eventPage is where the GPU marks signal events: a BO the process named, or a
// page of the KFD's own that the process maps.
type eventPage struct {
	mem    []byte
	bo     *bo // held
	handle uint64
	off    uint64 // of the KFD's own page
}

type event struct {
	id        uint32
	typ       uint32
	autoReset bool
	signaled  bool
	exception abi.KFDMemoryException
}

// Event types that have a slot in the event page, ids of the others, and what
// an unsignalled slot holds (kfd_events.c).
const (
	eventDebug           = 5
	firstNonsignalEvent  = 0x80000000
	unsignaledSlot       = ^uint64(0)
	infiniteTimeout      = 0xffffffff
	highestEventType     = abi.KFDEventMemory
	maxEventsInWait      = 4096
	maxNonsignalEvents   = 4096
	sizeOfKFDEventData   = 48
	waitTimeoutIsInstant = 0
)

func newEventTable() eventTable {
	return eventTable{byID: map[uint32]*event{}, changed: make(chan struct{})}
}

// wakeAll makes every waiter look again. Preconditions: Sim.mu is held.
func (t *eventTable) wakeAll() {
	close(t.changed)
	t.changed = make(chan struct{})
}

func (t *eventTable) sorted() []*event {
	out := make([]*event, 0, len(t.byID))
	for _, e := range t.byID {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b *event) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	return out
}

func usesSlot(typ uint32) bool { return typ == abi.KFDEventSignal || typ == eventDebug }

func kfdCreateEvent(c *kfdCall) syscall.Errno {
	var args abi.KFDCreateEventArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	c.proc.mu.Lock()
	defer c.proc.mu.Unlock()
	c.sim.mu.Lock()
	defer c.sim.unlock()
	t := &c.proc.events
	if args.EventPageOffset != 0 {
		if errno := c.proc.setEventPage(args.EventPageOffset); errno != 0 {
			return errno
		}
	}
	if args.EventType > highestEventType {
		return c.sim.refuse(syscall.EINVAL, "event type", "type", args.EventType)
	}
	e := &event{typ: args.EventType, autoReset: args.AutoReset != 0}
	if errno := c.proc.addEvent(e, nil); errno != 0 {
		return errno
	}
	args.EventID = e.id
	if usesSlot(e.typ) {
		if t.page.bo == nil {
			args.EventPageOffset = t.page.off
		}
		args.EventTriggerData, args.EventSlotIndex = e.id, e.id
	}
	return c.reply(&args)
}

// setEventPage makes an allocation the event page (kfd_kmap_event_page).
//
// Preconditions: Sim.mu is held.
func (p *kfdProcess) setEventPage(handle uint64) syscall.Errno {
	if p.events.page.mem != nil {
		return p.sim.refuse(syscall.EINVAL, "event page already set", "handle", handle)
	}
	m, errno := p.lookup(handle)
	if errno != 0 {
		return errno
	}
	if m.bo.kind != boGTT || m.bo.size < eventPageSize {
		return p.sim.refuse(syscall.EINVAL, "event page is no gtt bo of enough size", "handle", handle, "size",
			m.bo.size)
	}
	p.events.page = eventPage{mem: m.bo.mem, bo: m.bo.get(), handle: handle}
	clearSlots(m.bo.mem)
	return 0
}

func clearSlots(mem []byte) {
	for i := uint64(0); i < eventPageSize; i += 8 {
		storeWord(mem, i, unsignaledSlot)
	}
}

// addEvent gives an event its id, the one named or the next free, and makes
// the KFD's own page for the first signal event of a process that named none.
//
// Preconditions: Sim.mu is held.
func (p *kfdProcess) addEvent(e *event, id *uint32) syscall.Errno {
	t, s := &p.events, p.sim
	lo, n := uint32(firstNonsignalEvent), uint32(maxNonsignalEvents)
	if usesSlot(e.typ) {
		lo, n = 0, abi.KFDSignalEventMax
		if t.page.mem == nil {
			// The process's own pid names the page: CRIU restores the pid, and
			// with it the offset of the mapping.
			off := mmapOffset(mmapEvents, 0, p.vpid)
			for _, other := range s.procs {
				if other.events.page.off == off {
					return s.refuse(syscall.EBUSY,
						"two processes of the same pid in their namespaces use kfd event pages", "pid", p.vpid)
				}
			}
			mem, err := s.kfd.mapRange(off, eventPageSize)
			if err != nil {
				return s.refuse(syscall.ENOMEM, err.Error())
			}
			clearSlots(mem)
			t.page = eventPage{mem: mem, off: off}
		}
	}
	if id != nil {
		if *id < lo || *id-lo >= n || t.byID[*id] != nil {
			return s.refuse(syscall.EINVAL, "event id to restore is taken or out of range", "id", *id)
		}
		e.id = *id
	} else {
		for e.id = lo; t.byID[e.id] != nil; e.id++ {
			if e.id-lo == n-1 {
				return s.refuse(syscall.ENOSPC, "too many events")
			}
		}
	}
	t.byID[e.id] = e
	return 0
}

// eventCall runs fn on the event an argument names. errno is EINVAL.
func eventCall(c *kfdCall, fn func(*eventTable, *event)) syscall.Errno {
	var args abi.KFDEventArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	c.sim.mu.Lock()
	defer c.sim.unlock()
	e := c.proc.events.byID[args.EventID]
	if e == nil {
		return c.sim.refuse(syscall.EINVAL, "no such event", "id", args.EventID)
	}
	fn(&c.proc.events, e)
	return 0
}

func kfdDestroyEvent(c *kfdCall) syscall.Errno {
	return eventCall(c, func(t *eventTable, e *event) {
		delete(t.byID, e.id)
		t.wakeAll()
	})
}

func kfdSetEvent(c *kfdCall) syscall.Errno {
	return eventCall(c, func(t *eventTable, e *event) {
		e.signaled = true
		t.wakeAll()
	})
}

func kfdResetEvent(c *kfdCall) syscall.Errno {
	return eventCall(c, func(_ *eventTable, e *event) { e.signaled = false })
}

// interrupt is the GPU telling that it marked an event's slot.
func (p *kfdProcess) interrupt(id uint32) {
	s := p.sim
	s.mu.Lock()
	defer s.unlock()
	e := p.events.byID[id]
	if e == nil || !usesSlot(e.typ) || p.events.page.mem == nil {
		s.refuse(syscall.ENOENT, "gpu signalled an event that does not exist", "pid", p.pid, "id", id)
		return
	}
	storeWord(p.events.page.mem, uint64(id)*8, unsignaledSlot)
	e.signaled = true
	p.events.wakeAll()
}

// raiseFault signals the memory events of a process.
//
// Preconditions: Sim.mu is held.
func (p *kfdProcess) raiseFault(f *GPUFault, userID uint32) {
	for _, e := range p.events.byID {
		if e.typ != abi.KFDEventMemory {
			continue
		}
		e.exception = abi.KFDMemoryException{VA: f.VA &^ (pageSize - 1), GPUID: userID}
		if f.Write && f.Reason == "mapping does not allow it" {
			e.exception.ReadOnly = 1
		} else {
			e.exception.NotPresent = 1
		}
		e.signaled = true
	}
	p.events.wakeAll()
}

func kfdWaitEvents(c *kfdCall) syscall.Errno {
	var args abi.KFDWaitEventsArgs
	if errno := c.decode(&args); errno != 0 {
		return errno
	}
	if args.NumEvents == 0 || args.NumEvents > maxEventsInWait {
		return c.sim.refuse(syscall.EINVAL, "wait for a number of events", "n", args.NumEvents)
	}
	buf := make([]byte, sizeOfKFDEventData*args.NumEvents)
	if errno := c.who.readUser(args.EventsPtr, buf); errno != 0 {
		return errno
	}
	data := make([]abi.KFDEventData, args.NumEvents)
	if abi.Decode(buf, data) != nil {
		return syscall.EINVAL
	}
	result, errno := c.proc.wait(c, data, args.WaitForAll != 0, args.Timeout)
	if errno != 0 {
		return errno
	}
	args.WaitResult = result
	if result == abi.KFDWaitComplete {
		var out []byte
		for i := range data {
			out = appendStruct(out, &data[i])
		}
		if errno := c.who.writeUser(args.EventsPtr, out); errno != 0 {
			return errno
		}
	}
	return c.reply(&args)
}

// wait blocks until one or all of the events came, the time (in milliseconds)
// is over, or the caller is interrupted: EINTR. An event counts from the
// moment it is seen signalled; an auto-reset event is reset by that.
func (p *kfdProcess) wait(c *kfdCall, data []abi.KFDEventData, all bool, timeoutMS uint32) (uint32, syscall.Errno) {
	var deadline <-chan time.Time
	if timeoutMS != infiniteTimeout {
		t := time.NewTimer(time.Duration(timeoutMS) * time.Millisecond)
		defer t.Stop()
		deadline = t.C
	}
	seen := make([]bool, len(data))
	for first := true; ; first = false {
		p.sim.mu.Lock()
		if p.dead {
			p.sim.unlock()
			return 0, syscall.EINTR
		}
		n := 0
		for i := range data {
			e := p.events.byID[data[i].EventID]
			switch {
			case seen[i]:
			case e == nil && first:
				p.sim.unlock()
				return 0, p.sim.refuse(syscall.EINVAL, "wait for an event that does not exist", "id", data[i].EventID)
			case e == nil:
				p.sim.unlock()
				return abi.KFDWaitFail, 0
			case e.signaled:
				seen[i] = true
				if e.autoReset {
					e.signaled = false
				}
				if e.typ == abi.KFDEventMemory {
					data[i].Memory = e.exception
				}
			}
			if seen[i] {
				n++
			}
		}
		changed := p.events.changed
		p.sim.unlock()
		if n == len(data) || n > 0 && !all {
			return abi.KFDWaitComplete, 0
		}
		if timeoutMS == waitTimeoutIsInstant {
			return abi.KFDWaitTimeout, 0
		}
		select {
		case <-changed:
		case <-deadline:
			return abi.KFDWaitTimeout, 0
		case <-c.ctx.Done():
			p.unsee(data, seen)
			return 0, syscall.EINTR
		}
	}
}

// unsee gives back the auto-reset events that an interrupted wait consumed, as
// the caller will wait again.
func (p *kfdProcess) unsee(data []abi.KFDEventData, seen []bool) {
	p.sim.mu.Lock()
	defer p.sim.unlock()
	for i := range data {
		if e := p.events.byID[data[i].EventID]; seen[i] && e != nil && e.autoReset {
			e.signaled = true
		}
	}
	p.events.wakeAll()
}
