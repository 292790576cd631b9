package manifest

import "sort"

// Group is a chunk of a segment with the runs that use it, zero runs between them included, or a zero run alone.
type Group struct {
	Runs       []Run
	Start, End int64 // in the file
	Whole      bool  // the runs use every byte of one chunk, in order
}

// Divided says whether one of the ascending offsets lies within the group.
func (g Group) Divided(offs []int64) bool {
	i := sort.Search(len(offs), func(i int) bool { return offs[i] > g.Start })
	return i < len(offs) && offs[i] < g.End
}

// Groups calls fn for the groups of the segment, in order, until it fails.
func (s *Segment) Groups(fn func(Group) error) error {
	for i := 0; i < len(s.Runs); {
		last, ci := i, s.Runs[i].Chunk
		off := uint32(0)
		whole := ci != ZeroRun
		if whole {
			for j := i; j < len(s.Runs); j++ {
				r := s.Runs[j]
				if r.Chunk == ZeroRun {
					continue
				}
				if r.Chunk != ci {
					break
				}
				whole = whole && r.Off == off
				off = r.Off + uint32(r.Len)
				last = j
			}
			whole = whole && off == s.Chunks[ci].Len
		}
		end := s.Runs[last]
		g := Group{Runs: s.Runs[i : last+1], Start: s.Start + s.Runs[i].Start,
			End: s.Start + end.Start + end.Len, Whole: whole}
		if err := fn(g); err != nil {
			return err
		}
		i = last + 1
	}
	return nil
}
