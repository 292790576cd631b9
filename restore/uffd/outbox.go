package uffd

import (
	"sync"

	"github.com/gpucr/gpucr-fs/prefetch"
)

// outbox sends packets to the present provider, in order and without letting the sender wait: it is used by goroutines
// that serve page faults. The goroutine that puts a packet sends it when there is room:
// waking another one takes longer.
type outbox struct {
	mu      sync.Mutex
	change  *sync.Cond
	target  *wire
	queue   []packet
	sending bool
	closed  bool
	done    chan struct{}
}

func newOutbox() *outbox {
	o := &outbox{done: make(chan struct{})}
	o.change = sync.NewCond(&o.mu)
	go o.run()
	return o
}

// to changes the receiver. What was not sent to the earlier one is dropped; w
// may be nil.
func (o *outbox) to(w *wire) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.target = w
	o.drop()
	o.change.Broadcast()
}

// put queues a packet and owns its descriptors. It returns false when there is
// no receiver.
func (o *outbox) put(p packet) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.target == nil || o.closed {
		closeAll(p.fds)
		return false
	}
	if len(o.queue) == 0 && !o.sending && o.target.sendNow(&p) == nil {
		closeAll(p.fds)
		return true
	}
	o.queue = append(o.queue, p)
	o.change.Broadcast()
	return true
}

func (o *outbox) putRanges(k kind, ranges []prefetch.Range) {
	for len(ranges) > 0 {
		n := min(len(ranges), maxRanges)
		o.put(packet{kind: k, ranges: ranges[:n]})
		ranges = ranges[n:]
	}
}

// flush waits until everything has been sent or dropped.
func (o *outbox) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for (len(o.queue) > 0 || o.sending) && !o.closed {
		o.change.Wait()
	}
}

// close drops what is queued and ends the outbox.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.drop()
	o.change.Broadcast()
	o.mu.Unlock()
	<-o.done
}

// drop forgets the queue. Preconditions: mu is held.
func (o *outbox) drop() {
	for _, p := range o.queue {
		closeAll(p.fds)
	}
	o.queue = nil
}

func (o *outbox) run() {
	defer close(o.done)
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.closed {
		if len(o.queue) == 0 {
			o.change.Wait()
			continue
		}
		p, w := o.queue[0], o.target
		o.queue = o.queue[1:]
		o.sending = true
		o.mu.Unlock()
		// An error means that the receiver is gone, which its connection
		// shows as well.
		w.send(&p)
		closeAll(p.fds)
		o.mu.Lock()
		o.sending = false
		o.change.Broadcast()
	}
}
