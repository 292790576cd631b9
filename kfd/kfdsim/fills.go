package kfdsim

// gap is a part of a BO that holds nothing yet: bytes [off, end).
type gap struct{ off, end uint64 }

// gaps are what a RESTORE made and nobody has filled (Options.CheckFills), ascending and apart. Submissions
// of the DRM side fill them. A queue that comes to one is at fault: it would
// read what the checkpoint did not have there, or write what the fill then
// overwrites.
type gaps []gap

// over returns the first of the gaps that has bytes of [off, off+n).
func (g gaps) over(off, n uint64) (gap, bool) {
	for _, x := range g {
		if x.off < off+n && off < x.end {
			return x, true
		}
	}
	return gap{}, false
}

// without takes [off, off+n) out.
func (g gaps) without(off, n uint64) gaps {
	end := off + n
	if _, ok := g.over(off, n); !ok {
		return g
	}
	var out gaps
	for _, x := range g {
		if x.off < off {
			out = append(out, gap{x.off, min(x.end, off)})
		}
		if x.end > end {
			out = append(out, gap{max(x.off, end), x.end})
		}
	}
	return out
}

// filled notes what a submission has written.
func (a *access) filled(spans []span) {
	if a.listed == nil {
		return
	}
	a.sim.mu.Lock()
	defer a.sim.unlock()
	for _, sp := range spans {
		if sp.bo != nil && sp.bo.missing != nil {
			sp.bo.missing = sp.bo.missing.without(sp.off, sp.n)
		}
	}
}

// bytes is how many are missing.
func (g gaps) bytes() (n uint64) {
	for _, x := range g {
		n += x.end - x.off
	}
	return n
}
