package catalog

import (
	"sync"
	"sync/atomic"
)

// packSet is a set of packs in the order they came. Its methods may be called at once. The zero set is empty.
type packSet struct {
	mu    sync.Mutex
	in    map[Pack]bool
	order []Pack
}

func (s *packSet) add(p Pack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in == nil {
		s.in = map[Pack]bool{}
	}
	if !s.in[p] {
		s.in[p] = true
		s.order = append(s.order, p)
	}
}

func (s *packSet) has(p Pack) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.in[p]
}

func (s *packSet) list() []Pack {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Pack(nil), s.order...)
}

// counter gives numbers from 0 on, each once.
type counter struct{ next atomic.Uint32 }

func (c *counter) take() uint32 { return c.next.Add(1) - 1 }
