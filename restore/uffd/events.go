package uffd

import (
	"slices"
	"sort"
)

// The kernel reports a fork, mremap, munmap or madvise after it took place (a
// madvise: before) and blocks the thread until the report has been read. It
// queues the reports of different threads in the order they get there, which
// need not be the order in which the calls took effect: after one thread has
// moved A away, another's move of C to A may be reported first. These rules
// hold, and the code below rests on them (see also TestKernelEvents):
//
//  1. A thread's own calls are reported in order, and one mremap gives UNMAP of
//     an overlaid target, REMAP, UNMAP of the source unless MREMAP_DONTUNMAP.
//  2. From the moment a call takes effect until its thread has noticed that the
//     report was read, every attempt to fill memory fails with EAGAIN. When
//     one would not, the space is quiet: all reports are in, nothing is
//     ambiguous, and what the probe says about an address is the truth.
//
// So events are applied as they come, and nothing is filled until the space is
// quiet again.
//
// Each address keeps the list of its installs (first registration, REMAP to
// it) whose end has not been reported, and each piece the install it came
// with. An end (UNMAP, REMAP from it) concerns the oldest install, so contents
// that an overtaking REMAP brought to an address survive the late report of
// what was there before; contents that were displaced wait in displaced for it.
//
// What mremap adds in place to a mapping is not reported: there may have been
// more at an address than is known. An end that begins at an older install, of
// which a newer one further up cannot be part, reached up to there in what was
// not known, and leaves the newer one alone.

// install is one period of an address being registered.
type install struct {
	gen uint64 // 0 for what was here when the space was last settled
	// to is the install that a REMAP moved the contents to, 0 when none did.
	// The UNMAP of that mremap is to come.
	to uint64
}

type area struct {
	start, end uint64
	installs   []install // oldest first, never empty
}

// areas are sorted and disjoint.
type areas []area

// within cuts areas at start and end and returns the index range of those in
// between.
func (a *areas) within(start, end uint64) (i, j int) {
	i = a.cut(start)
	return i, a.cut(end)
}

// cut makes addr a boundary and returns the index of the first area from there.
func (a *areas) cut(addr uint64) int {
	s := *a
	i := sort.Search(len(s), func(i int) bool { return s[i].end > addr })
	if i < len(s) && s[i].start < addr {
		head := area{s[i].start, addr, slices.Clone(s[i].installs)}
		s[i].start = addr
		*a = slices.Insert(s, i, head)
		i++
	}
	return i
}

// fill notes that all of [start, end) turned out to be registered, by in where
// nothing was known.
func (a *areas) fill(start, end uint64, in install) {
	i, j := a.within(start, end)
	var out areas
	for _, r := range (*a)[i:j] {
		if start < r.start {
			out = append(out, area{start, r.start, []install{in}})
		}
		out = append(out, r)
		start = r.end
	}
	if start < end {
		out = append(out, area{start, end, []install{in}})
	}
	*a = slices.Replace(*a, i, j, out...)
}

// install notes that [start, end) has been registered anew.
func (a *areas) install(start, end uint64, gen uint64) {
	i, j := a.within(start, end)
	var out areas
	for _, r := range (*a)[i:j] {
		if start < r.start {
			out = append(out, area{start, r.start, []install{{gen: gen}}})
		}
		r.installs = append(r.installs, install{gen: gen})
		out = append(out, r)
		start = r.end
	}
	if start < end {
		out = append(out, area{start, end, []install{{gen: gen}}})
	}
	*a = slices.Replace(*a, i, j, out...)
}

// cover makes sure that [start, end) of settled areas is registered.
func (a *areas) cover(start, end uint64) {
	i, j := a.within(start, end)
	*a = slices.Replace(*a, i, j, area{start, end, []install{{}}})
}

// settle keeps one install of each area, as nothing older can be outstanding,
// and joins neighbours.
func (a *areas) settle() {
	out := (*a)[:0]
	for _, r := range *a {
		if n := len(out); n > 0 && out[n-1].end == r.start {
			out[n-1].end = r.end
			continue
		}
		out = append(out, area{r.start, r.end, []install{{}}})
	}
	clear((*a)[len(out):])
	*a = out
}

// unfilled appends the runs of p that are not done.
func (s *space) unfilled(out []*piece, p *piece) []*piece {
	for off := p.off; ; {
		from, to := s.undone(p.file, off, p.offEnd())
		if from == to {
			return out
		}
		out = append(out, p.part(p.start+uint64(from-p.off), p.start+uint64(to-p.off)))
		off = to
	}
}

// takeDisplaced removes the displaced pieces of one install from [start, end).
func (s *space) takeDisplaced(start, end, gen uint64) []*piece {
	var out, rest []*piece
	for _, p := range s.displaced {
		in, around := p.carve(start, end)
		if in == nil || p.gen != gen {
			rest = append(rest, p)
			continue
		}
		rest = append(rest, around...)
		out = append(out, in)
	}
	s.displaced = rest
	return out
}

// takeLive removes the pieces of one install from [start, end).
func (s *space) takeLive(start, end, gen uint64) []*piece {
	return s.live.take(start, end, func(p *piece) bool { return p.gen != gen })
}

// forget gives pieces up: their addresses are gone or read as zero from now on.
func (s *space) forget(ps []*piece) {
	for _, p := range ps {
		s.markDone(p.file, p.off, p.size())
	}
}

// carve returns the part of p in [start, end), nil when there is none, and the
// parts around it.
func (p *piece) carve(start, end uint64) (in *piece, around []*piece) {
	lo, hi := max(p.start, start), min(p.end, end)
	if lo >= hi {
		return nil, nil
	}
	if p.start < lo {
		around = append(around, p.part(p.start, lo))
	}
	if hi < p.end {
		around = append(around, p.part(hi, p.end))
	}
	return p.part(lo, hi), around
}

// unmap applies UFFD_EVENT_UNMAP.
func (s *space) unmap(start, end uint64) {
	if s.forked {
		s.unmapInOrder(start, end)
		return
	}
	i, j := s.areas.within(start, end)
	var out areas
	older := ^uint64(0)
	for _, r := range s.areas[i:j] {
		in := r.installs[0]
		if len(r.installs) == 1 && older < in.gen {
			// What is older and ends below here reached up to here: mremap
			// had added to it in place, which is not reported.
			out = append(out, r)
			continue
		}
		if in.to == 0 {
			older = min(older, in.gen)
		}
		for _, ended := range r.installs {
			// Which of several this is about nobody can tell. One that is
			// held to be moving for too long loses its contents at the next
			// mremap.
			if ended.to == 0 {
				break
			}
			s.moving = slices.DeleteFunc(s.moving, func(g uint64) bool { return g == ended.to })
		}
		s.forget(s.takeDisplaced(r.start, r.end, in.gen))
		s.forget(s.takeLive(r.start, r.end, in.gen))
		if r.installs = r.installs[1:]; len(r.installs) > 0 {
			out = append(out, r)
		}
	}
	s.areas = slices.Replace(s.areas, i, j, out...)
}

// remove applies UFFD_EVENT_REMOVE: the range stays registered and empty.
func (s *space) remove(start, end uint64) {
	s.forget(s.live.take(start, end, nil))
}

// remap applies UFFD_EVENT_REMAP.
func (s *space) remap(from, to, n uint64) {
	if s.forked {
		s.remapInOrder(from, to, n)
		return
	}
	s.gen++
	var ps, displaced []*piece
	i, j := s.areas.within(from, from+n)
	older := ^uint64(0)
	for k := range s.areas[i:j] {
		r := &s.areas[i+k]
		// What an mremap brought cannot move on before all of that mremap
		// has been reported, so this is about something older.
		l := slices.IndexFunc(r.installs,
			func(in install) bool { return in.to == 0 && !slices.Contains(s.moving, in.gen) })
		if l < 0 || older < r.installs[l].gen {
			// Not known: what is older and moves from below reached up to here.
			r.installs = slices.Insert(r.installs, 0, install{to: s.gen})
			continue
		}
		older = min(older, r.installs[l].gen)
		r.installs[l].to = s.gen
		ps = append(ps, s.takeLive(r.start, r.end, r.installs[l].gen)...)
		displaced = append(displaced, s.takeDisplaced(r.start, r.end, r.installs[l].gen)...)
	}
	s.areas.fill(from, from+n, install{to: s.gen})
	s.moving = append(s.moving, s.gen)
	s.areas.install(to, to+n, s.gen)
	s.displaced = append(s.displaced, s.live.take(to, to+n, nil)...)
	s.move(from, to, append(ps, displaced...))
}

// move puts pieces in place that were taken from their addresses.
func (s *space) move(from, to uint64, ps []*piece) {
	for _, p := range ps {
		q := p.part(p.start, p.end)
		q.start, q.end, q.gen = p.start-from+to, p.end-from+to, s.gen
		s.live.put(q)
	}
}

// probe asks the kernel whether a range is registered and within one mapping.
// sure is false when the space has ceased to be quiet.
type probe func(start, end uint64) (yes, sure bool)

type coverage int

const (
	none coverage = iota
	partly
	whole
	unsure
)

// covers tells how much of a range is registered. When it is not whole it
// judges by its ends: events are about whole mappings or their parts.
func (p probe) covers(start, end uint64) coverage {
	ask := [][2]uint64{{start, end}}
	if end-start > pageSize {
		ask = append(ask, [2]uint64{start, start + pageSize}, [2]uint64{end - pageSize, end})
	}
	for i, r := range ask {
		yes, sure := p(r[0], r[1])
		switch {
		case !sure:
			return unsure
		case yes && i == 0:
			return whole
		case yes:
			return partly
		}
	}
	return none
}

// settle is called when the space is quiet: no report is outstanding. It
// returns false when the space ceased to be quiet before all was known.
func (s *space) settle(probe probe) bool {
	if s.forked {
		if !s.areas.verify(probe) {
			return false
		}
		s.forked = false
	}
	s.areas.settle()
	if s.gen > 0 {
		for _, p := range s.live.byAddr {
			p.gen = 0
		}
	}
	// What displaced these has ended, and they were not moved.
	s.forget(s.displaced)
	s.gen, s.moving, s.displaced = 0, nil, nil
	return true
}
