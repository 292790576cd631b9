package manifest

import (
	"slices"
	"sort"
)

// Put puts runs, which follow each other from rel on, in place of what the segment has there.
func (s *Segment) Put(rel int64, runs []Run) {
	end := runs[len(runs)-1].Start + runs[len(runs)-1].Len
	// A run on either side is looked at, too: what goes on in what is put there is joined with it.
	from := max(s.Find(rel)-1, 0)
	to := min(sort.Search(len(s.Runs), func(k int) bool { return s.Runs[k].Start >= end })+1, len(s.Runs))
	s.Runs = slices.Replace(s.Runs, from, to, Splice(s.Runs[from:to], rel, end, runs)...)
}

// Splice puts mid in place of [a, b) of runs, and joins runs that go on in each other.
func Splice(runs []Run, a, b int64, mid []Run) []Run {
	out := make([]Run, 0, len(runs)+len(mid)+1)
	add := func(r Run) {
		if k := len(out) - 1; k >= 0 && out[k].Chunk == r.Chunk &&
			(r.Chunk == ZeroRun || int64(out[k].Off)+out[k].Len == int64(r.Off)) {
			out[k].Len += r.Len
			return
		}
		out = append(out, r)
	}
	clip := func(r Run, lo, hi int64) {
		lo, hi = max(lo, r.Start), min(hi, r.Start+r.Len)
		if lo >= hi {
			return
		}
		if r.Chunk != ZeroRun {
			r.Off += uint32(lo - r.Start)
		}
		r.Start, r.Len = lo, hi-lo
		add(r)
	}
	for _, r := range runs {
		clip(r, 0, a)
	}
	for _, r := range mid {
		add(r)
	}
	for _, r := range runs {
		clip(r, b, 1<<62)
	}
	return out
}
