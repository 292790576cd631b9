// Package stay decides when a daemon leaves: when nothing holds it any more.
//
// Mounts, restores, clients and what they are about to become each hold the daemon and let it go again. With the last
// one it leaves, by itself; from then on nothing can hold it. A daemon that is told to stop leaves, whoever holds it.
//
// # Lock order
//
// Stay.mu comes after every other lock of the daemon, and nothing is called while it is held.
package stay

import (
	"errors"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/index"
)

// Stay counts what holds one daemon.
type Stay struct {
	mu       sync.Mutex
	holds    int
	awaiting bool // holds counts the starter, who has not come yet
	stopping bool
	idle     chan struct{} // closed when the last hold is gone
}

// New is the stay of a daemon that nothing holds yet; it leaves only after something did.
func New() *Stay { return &Stay{idle: make(chan struct{})} }

// Await holds the daemon until the first client has come, for this long at most.
func (s *Stay) Await(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds, s.awaiting = s.holds+1, true
	time.AfterFunc(d, s.endAwait)
}

func (s *Stay) endAwait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endAwaitLocked()
}

func (s *Stay) endAwaitLocked() {
	if s.awaiting {
		s.awaiting = false
		s.releaseLocked()
	}
}

// Hold keeps the daemon until Release, for its own work; false when it leaves already.
func (s *Stay) Hold() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return false
	}
	s.holds++
	return true
}

// HoldAlong is Hold where something else holds the daemon already: what is done beside other work neither begins a
// daemon's stay nor ends it.
func (s *Stay) HoldAlong() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping || s.holds == 0 {
		return false
	}
	s.holds++
	return true
}

// HoldClient is Hold for a client: whoever started the daemon has come then.
func (s *Stay) HoldClient() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return false
	}
	s.holds++
	s.endAwaitLocked()
	return true
}

// Release lets the daemon go.
func (s *Stay) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseLocked()
}

func (s *Stay) releaseLocked() {
	s.holds--
	if s.holds == 0 && !s.stopping {
		s.stopping = true
		close(s.idle)
	}
}

// Stop has nothing hold the daemon from now on.
func (s *Stay) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
}

// Idle is closed when the daemon leaves because nothing holds it.
func (s *Stay) Idle() <-chan struct{} { return s.idle }

// ErrStopping refuses what would hold a daemon that leaves.
func ErrStopping() error {
	return &index.Error{
		Class: index.InUse,
		Op:    "mount",
		Err:   errors.New("the daemon is just stopping"),
		Hint:  "try again",
	}
}
