// Package lifetime decides when a daemon leaves: when nothing holds it any more.
//
// Mounts, restores, clients and what they are about to become each hold the daemon and let it go again. With the last
// one it leaves, by itself; from then on nothing can hold it. A daemon that is told to stop leaves, whoever holds it.
//
// # Lock order
//
// Lifetime.mu comes after every other lock of the daemon, and nothing is called while it is held.
package lifetime

import (
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/index"
)

// Lifetime counts what holds one daemon.
type Lifetime struct {
	mu       sync.Mutex
	holds    int
	awaiting bool // holds counts the starter, who has not come yet
	stopping bool
	idle     chan struct{} // closed when the last hold is gone
}

// New is the lifetime of a daemon that nothing holds yet; it leaves only after something did.
func New() *Lifetime { return &Lifetime{idle: make(chan struct{})} }

// Await holds the daemon until the first client has connected, for this long at most.
func (l *Lifetime) Await(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds, l.awaiting = l.holds+1, true
	time.AfterFunc(d, l.endAwait)
}

func (l *Lifetime) endAwait() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endAwaitLocked()
}

func (l *Lifetime) endAwaitLocked() {
	if l.awaiting {
		l.awaiting = false
		l.releaseLocked()
	}
}

// Hold keeps the daemon until Release, for its own work; false when it leaves already.
func (l *Lifetime) Hold() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopping {
		return false
	}
	l.holds++
	return true
}

// HoldAlong is Hold where something else holds the daemon already: what is done beside other work neither begins a
// daemon's lifetime nor ends it.
func (l *Lifetime) HoldAlong() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopping || l.holds == 0 {
		return false
	}
	l.holds++
	return true
}

// HoldClient is Hold for a client. It ends Await: the first client is the starter, or comes in its place.
func (l *Lifetime) HoldClient() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopping {
		return false
	}
	l.holds++
	l.endAwaitLocked()
	return true
}

// Release lets the daemon go.
func (l *Lifetime) Release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.releaseLocked()
}

func (l *Lifetime) releaseLocked() {
	l.holds--
	if l.holds == 0 && !l.stopping {
		l.stopping = true
		close(l.idle)
	}
}

// Stop has nothing hold the daemon from now on.
func (l *Lifetime) Stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopping = true
}

// Idle is closed when the daemon leaves because nothing holds it.
func (l *Lifetime) Idle() <-chan struct{} { return l.idle }

// stopping is an index.ErrDaemonHolds: the daemon has the store a little longer.
type stopping struct{}

func (stopping) Error() string        { return "the daemon is just stopping" }
func (stopping) Is(target error) bool { return target == index.ErrDaemonHolds }

// ErrStopping refuses what would hold a daemon that leaves.
func ErrStopping() error {
	return &index.Error{
		Class: index.InUse,
		Op:    "mount",
		Err:   stopping{},
		Hint:  "try again",
	}
}
