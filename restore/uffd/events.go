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
// So events are applied as they come, assuming the likely order, with notes on
// what could have been otherwise, and nothing is filled until the space is
// quiet again and settle has looked at the notes.
//
// Each address keeps the list of its installs (first registration, REMAP to
// it) whose end has not been reported, and each piece the install it came
// with. An end (UNMAP, REMAP from it) concerns the oldest install, so contents
// that an overtaking REMAP brought to an address survive the late report of
// what was there before; contents that were displaced wait in limbo for it.

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

// fill notes that all of [start, end) turned out to be registered.
func (a *areas) fill(start, end uint64) {
	i, j := a.within(start, end)
	var out areas
	for _, r := range (*a)[i:j] {
		if start < r.start {
			out = append(out, area{start, r.start, []install{{}}})
		}
		out = append(out, r)
		start = r.end
	}
	if start < end {
		out = append(out, area{start, end, []install{{}}})
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

// doubt is a piece of unfilled pages that an event displaced from where it
// was, though the event may have come out of order.
type doubt struct {
	*piece
	kind displaced
	read uint64 // the read call that brought the event
}

type displaced int

const (
	unmapped displaced = iota
	removed
	moved
)

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

// drop gives pieces up: their addresses are gone or read as zero from now on.
func (s *space) drop(ps []*piece, kind displaced) {
	for _, p := range ps {
		for _, u := range s.unfilled(nil, p) {
			s.recent = append(s.recent, doubt{piece: u, kind: kind, read: s.reads})
		}
	}
	s.forget(ps)
}

// takeLimbo removes the displaced pieces of one install from [start, end).
func (s *space) takeLimbo(start, end, gen uint64) []*piece {
	var out, rest []*piece
	for _, p := range s.limbo {
		in, around := p.carve(start, end)
		if in == nil || p.gen != gen {
			rest = append(rest, p)
			continue
		}
		rest = append(rest, around...)
		out = append(out, in)
	}
	s.limbo = rest
	return out
}

// takeLive removes the pieces of one install from [start, end).
func (s *space) takeLive(start, end, gen uint64) []*piece {
	return s.live.take(start, end, func(p *piece) bool { return p.gen != gen })
}

// forget gives pieces up for good, forks in this batch included.
func (s *space) forget(ps []*piece) {
	for _, p := range ps {
		s.markDone(p.file, p.off, p.size())
	}
}

// takeDoubts removes what is doubtful in [start, end). It returns the pieces that
// are there or gone, and the doubts about those that are there or where they were
// moved to.
func (s *space) takeDoubts(start, end uint64) (ps []*piece, unmoved []doubt) {
	for _, d := range s.doubts {
		in, _ := d.carve(start, end)
		switch {
		case in == nil:
		case d.kind == moved:
			unmoved = append(unmoved, d.part(in.start, in.end))
		default:
			ps = append(ps, in)
		}
	}
	s.doubts = carveDoubts(s.doubts, start, end)
	return ps, unmoved
}

// carveDoubts removes [start, end) from doubts.
func carveDoubts(doubts []doubt, start, end uint64) []doubt {
	var rest []doubt
	for _, d := range doubts {
		in, around := d.carve(start, end)
		if in == nil {
			rest = append(rest, d)
		}
		for _, p := range around {
			rest = append(rest, d.part(p.start, p.end))
		}
	}
	return rest
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
	for _, r := range s.areas[i:j] {
		in := r.installs[0]
		for _, ended := range r.installs {
			// Which of several this is about nobody can tell. One that is
			// held to be moving for too long loses its contents at the next
			// mremap.
			if ended.to == 0 {
				break
			}
			s.moving = slices.DeleteFunc(s.moving, func(g uint64) bool { return g == ended.to })
		}
		s.forget(s.takeLimbo(r.start, r.end, in.gen))
		ps := s.takeLive(r.start, r.end, in.gen)
		if in.gen > 0 && len(r.installs) == 1 {
			// Came by a REMAP since the space was last settled: this may be
			// the late report about something not known that was here
			// before, such as what mremap had added in place to a mapping.
			for _, p := range ps {
				s.doubts = append(s.doubts, doubt{piece: p, kind: unmapped})
			}
		} else {
			s.drop(ps, unmapped)
		}
		if r.installs = r.installs[1:]; len(r.installs) > 0 {
			out = append(out, r)
		}
	}
	s.areas = slices.Replace(s.areas, i, j, out...)
}

// remove applies UFFD_EVENT_REMOVE: the range stays registered and empty.
func (s *space) remove(start, end uint64) {
	s.drop(s.live.take(start, end, nil), removed)
	// What may have been moved is empty if it was here.
	ps, _ := s.takeDoubts(start, end)
	s.drop(ps, removed)
}

// remap applies UFFD_EVENT_REMAP.
func (s *space) remap(from, to, n uint64) {
	if s.forked {
		s.remapInOrder(from, to, n)
		return
	}
	s.gen++
	var ps, displaced []*piece
	s.areas.fill(from, from+n)
	i, j := s.areas.within(from, from+n)
	for k := range s.areas[i:j] {
		r := &s.areas[i+k]
		// What an mremap brought cannot move on before all of that mremap
		// has been reported, so this is about something older.
		l := slices.IndexFunc(r.installs, func(in install) bool { return in.to == 0 && !slices.Contains(s.moving, in.gen) })
		if l < 0 {
			r.installs = slices.Insert(r.installs, 0, install{to: s.gen})
			continue
		}
		r.installs[l].to = s.gen
		ps = append(ps, s.takeLive(r.start, r.end, r.installs[l].gen)...)
		displaced = append(displaced, s.takeLimbo(r.start, r.end, r.installs[l].gen)...)
	}
	s.moving = append(s.moving, s.gen)
	// There was something to move, so these had not been unmapped.
	doubtful, unmoved := s.takeDoubts(from, from+n)
	ps = append(ps, doubtful...)
	s.areas.install(to, to+n, s.gen)
	s.limbo = append(s.limbo, s.live.take(to, to+n, nil)...)
	s.move(from, to, n, ps, displaced, unmoved)
}

// move puts what was taken from its addresses in place at to: ps was there,
// displaced had been before another REMAP overtook, and unmoved may be there.
func (s *space) move(from, to, n uint64, ps, displaced []*piece, unmoved []doubt) {
	// What was doubtful at the target is gone, in a child as well.
	s.recent = carveDoubts(s.recent, to, to+n)
	gone, _ := s.takeDoubts(to, to+n)
	s.forget(gone)
	for _, d := range unmoved {
		d = d.part(d.start, d.end)
		d.start, d.end = d.start-from+to, d.end-from+to
		s.doubts = append(s.doubts, d)
	}
	for _, p := range ps {
		for _, u := range s.unfilled(nil, p) {
			s.recent = append(s.recent, doubt{piece: u, kind: moved, read: s.reads})
		}
	}
	for _, p := range append(ps, displaced...) {
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
// returns false when the space ceased to be quiet before all doubts had been
// resolved; the rest is kept.
func (s *space) settle(probe probe) bool {
	s.areas.settle()
	if s.gen > 0 {
		for _, p := range s.live.byAddr {
			p.gen = 0
		}
	}
	// What displaced these has ended, and they were not moved.
	s.forget(s.limbo)
	doubts := s.doubts
	s.gen, s.moving, s.limbo, s.doubts, s.recent = 0, nil, nil, nil, nil
	if s.forked && !s.areas.verify(probe) {
		s.doubts = doubts
		return false
	}
	s.forked = false
	for _, d := range doubts {
		at := d.start
		for _, gap := range s.live.gaps(d.start, d.end) {
			s.discard(d.part(at, gap[0]))
			s.resolve(d.part(gap[0], gap[1]), probe)
			at = gap[1]
		}
		s.discard(d.part(at, d.end))
	}
	return len(s.doubts) == 0
}

// part returns the doubt about a part of the range.
func (d doubt) part(start, end uint64) doubt {
	return doubt{d.piece.part(start, end), d.kind, d.read}
}

// discard ends a doubt: the piece is not where it was.
func (s *space) discard(d doubt) {
	if d.kind != moved {
		s.markDone(d.file, d.off, d.size())
	}
}

// resolve decides a doubt about a range without a live piece.
func (s *space) resolve(d doubt, probe probe) {
	var now *piece
	if d.kind == moved {
		// It is where it was moved to, unless nothing is there.
		now = s.live.holding(d.file, d.off, d.offEnd())
		if now == nil {
			return
		}
		d = d.part(d.start+uint64(now.off-d.off), d.start+uint64(now.offEnd()-d.off))
		switch probe.covers(now.start, now.end) {
		case whole:
			return
		case partly:
			s.halve(d, probe)
			return
		case unsure:
			s.doubts = append(s.doubts, d)
			return
		}
	}
	switch probe.covers(d.start, d.end) {
	case whole:
		if now != nil {
			s.live.take(now.start, now.end, nil)
		}
		d.gen = 0
		s.live.put(d.piece)
		s.areas.cover(d.start, d.end)
	case partly:
		s.halve(d, probe)
	case none:
		s.discard(d)
	case unsure:
		s.doubts = append(s.doubts, d)
	}
}

func (s *space) halve(d doubt, probe probe) {
	mid := d.start + uint64(d.size()/pageSize/2*pageSize)
	s.resolve(d.part(d.start, mid), probe)
	s.resolve(d.part(mid, d.end), probe)
}
