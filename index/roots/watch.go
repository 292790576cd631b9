package roots

// Subscribe calls fn with the name of a checkpoint after it was created, sealed, renamed, tagged or removed, until
// cancel is called. fn must not call the store.
func (s *Set) Subscribe(fn func(name string)) (cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nextWatch
	s.nextWatch++
	s.watchers[n] = fn
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, n)
	}
}

// Announce calls who subscribed.
func (s *Set) Announce(name string) {
	s.mu.Lock()
	fns := make([]func(string), 0, len(s.watchers))
	for _, fn := range s.watchers {
		fns = append(fns, fn)
	}
	s.mu.Unlock()
	for _, fn := range fns {
		fn(name)
	}
}
