package daemon

import (
	"sync"

	"github.com/gpucr/gpucr-fs/restore/uffd"
)

// spare is a guardian's process that is started before it is known what to guard: beside the opening of the store, which takes about as long.
type spare struct {
	mu      sync.Mutex
	started chan *uffd.Spawned // nil when there is none, or no more
}

// start starts it. Where that fails who needs a guardian starts one and learns why.
func (s *spare) start(command []string) {
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

// take gives it away, once; nil when there is none.
func (s *spare) take() *uffd.Spawned {
	s.mu.Lock()
	started := s.started
	s.started = nil
	s.mu.Unlock()
	if started == nil {
		return nil
	}
	return <-started
}

// close ends it if nobody has taken it.
func (s *spare) close() {
	if g := s.take(); g != nil {
		g.Close()
	}
}
