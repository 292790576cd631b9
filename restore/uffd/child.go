package uffd

import "slices"

// A forked child begins with what its parent's space says at the time of the
// report. Its one thread is the one that forked, all of whose calls had been
// reported. Reports that the parent's other threads still owe are never made to
// the child; what they move, unmap and give up at that very moment no other
// thread may count on.
//
// So until its space has settled for the first time the child's own reports are
// taken in the order they come in, and what they say of an address ends all doubts
// about it.

// fork returns the child's space.
func (s *space) fork() *space {
	c := &space{forked: true, areas: slices.Clone(s.areas), done: make([][]uint64, len(s.done))}
	for i, d := range s.done {
		c.done[i] = slices.Clone(d)
	}
	// No report of the parent's is to come here.
	for i := range c.areas {
		c.areas[i].installs = []install{{}}
	}
	own := make([]piece, len(s.live.byAddr))
	ps := make([]*piece, len(own))
	for i, p := range s.live.byAddr {
		own[i] = *p
		own[i].gen = 0
		ps[i] = &own[i]
	}
	c.live = newPieces(len(s.done), ps)
	c.left.Store(s.left.Load())
	c.forget(s.displaced)
	return c
}

// unmapInOrder is unmap in a child that has never settled.
func (s *space) unmapInOrder(start, end uint64) {
	s.areas.remove(start, end)
	s.forget(s.live.take(start, end, nil))
}

// remapInOrder is remap in a child that has never settled.
func (s *space) remapInOrder(from, to, n uint64) {
	s.areas.fill(from, from+n, install{})
	ps := s.live.take(from, from+n, nil)
	s.areas.cover(to, to+n)
	s.forget(s.live.take(to, to+n, nil))
	s.move(from, to, ps)
}

// remove forgets what is registered in [start, end).
func (a *areas) remove(start, end uint64) {
	i, j := a.within(start, end)
	*a = slices.Delete(*a, i, j)
}

// verify drops what is not registered: the parent may have had reports
// outstanding that its child will never get. It reports whether the kernel
// could answer.
func (a *areas) verify(probe probe) bool {
	var out areas
	sure := true
	var check func(start, end uint64)
	check = func(start, end uint64) {
		switch probe.covers(start, end) {
		case whole:
			out = append(out, area{start, end, []install{{}}})
		case partly:
			mid := start + (end-start)/pageSize/2*pageSize
			check(start, mid)
			check(mid, end)
		case unsure:
			sure = false
		}
	}
	for _, r := range *a {
		check(r.start, r.end)
	}
	if sure {
		*a = out
	}
	return sure
}
