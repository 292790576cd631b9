package pack

// Reaches says whether pack n is there and long enough to hold the slot at loc. It does not read the slot. A pack that
// was lost, or lost its end, is noticed in this way before more is built on it; what it costs is one look at the file
// for each pack, and one for each slot that is not there.
func (s *Set) Reaches(loc Loc) bool {
	end := loc.Offset() + loc.Slot()
	s.mu.Lock()
	defer s.mu.Unlock()
	if end <= s.sizes[loc.Pack] {
		return true
	}
	st, err := s.fs.Stat(s.PackPath(loc.Pack))
	if err != nil || st.Dir || st.Odd {
		return false
	}
	s.sizes[loc.Pack] = st.Size
	return end <= st.Size
}
