package pack

// Unsettled says whether pack n may still be told of slots that its journal does not know: it takes appends, or some
// wait for the next Commit. The caller sees to it that no Append and no Commit is running; the answer lasts as long.
func (s *Set) Unsettled(n uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active != nil && s.active.n == n {
		return true
	}
	for _, c := range s.pending {
		if c.Loc.Pack == n {
			return true
		}
	}
	return false
}
