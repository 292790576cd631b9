package restores

import (
	"sync"

	"github.com/gpucr/gpucr-fs/restore/uffd"
)

// Spare is a guardian's process that is started before a restore asks for one. Starting it takes as long as all else
// that a restore needs before CRIU may be asked. A daemon that is started for a restore does it while it opens the
// store, and a daemon that stays does it after each restore.
type Spare struct {
	mu      sync.Mutex
	started chan *uffd.Spawned // nil when there is none
	closed  bool
}

// Start starts it unless there is one. If that fails, the next restore starts a guardian itself and gets the error.
func (s *Spare) Start(command []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started != nil || s.closed {
		return
	}
	started := make(chan *uffd.Spawned, 1)
	s.started = started
	go func() {
		g, err := uffd.Spawn(command)
		if err != nil {
			g = nil
		}
		started <- g
	}()
}

// take gives it away; nil when there is none.
func (s *Spare) take() *uffd.Spawned {
	s.mu.Lock()
	started := s.started
	s.started = nil
	s.mu.Unlock()
	if started == nil {
		return nil
	}
	return <-started
}

// Close ends it, and starts no more.
func (s *Spare) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	if g := s.take(); g != nil {
		g.Close()
	}
}
