package uffd

import "slices"

// A forked child begins with what its parent's space says and what that may have
// got wrong, as doubts: reports that the parent's other threads still owe are
// never made to the child. What they have moved is not reachable in it: its one
// thread is the one that forked, and no other can tell it where. So until its
// space has settled for the first time the child's own reports are taken in the
// order they come in, and what they say of an address ends all doubts about it.

// fork returns the child's space. What this batch displaced from the parent
// may still be where it was in the child, if the fork took effect first:
//   - UNMAP and REMAP leave it to the probe of the child's memory.
//   - REMOVE comes before its effect. When one read call returned both events
//     their threads were blocked at the same time, so the fork did not see the
//     effect and the child keeps the contents. Otherwise they were, as far as
//     anyone can tell, one after the other.
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
	c.forget(s.limbo)
	c.doubts = slices.Clone(s.doubts)
	for _, d := range s.recent {
		if d.kind == removed && d.read != s.reads {
			continue
		}
		if d.kind != moved {
			c.setBits(d.file, d.off, d.size(), false)
		}
		c.doubts = append(c.doubts, d)
	}
	return c
}

// unmapInOrder is unmap in a child that has never settled.
func (s *space) unmapInOrder(start, end uint64) {
	s.areas.remove(start, end)
	s.drop(s.live.take(start, end, nil), unmapped)
	ps, _ := s.takeDoubts(start, end)
	s.drop(ps, unmapped)
}

// remapInOrder is remap in a child that has never settled.
func (s *space) remapInOrder(from, to, n uint64) {
	s.areas.fill(from, from+n)
	ps := s.live.take(from, from+n, nil)
	doubtful, unmoved := s.takeDoubts(from, from+n)
	s.areas.cover(to, to+n)
	s.forget(s.live.take(to, to+n, nil))
	s.move(from, to, n, append(ps, doubtful...), nil, unmoved)
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
