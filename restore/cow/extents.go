package cow

import (
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

// compare compares the bytes of [start, end), which lie at a and at b, as far as that can be done without reading
// them.
func (p *pair) compare(start, end uint64, a, b side) {
	n := int64(end - start)
	xs, ys := a.extents(n), b.extents(n)
	decided, before := start, false // up to here, where a chunk in common ends
	settle := func(from, to int64, equal bool) {
		// Whole pages only.
		s := criuimg.Span{Start: start + uint64(from+pageSize-1)&^(pageSize-1), End: start + uint64(to)&^(pageSize-1)}
		if s.Start >= s.End {
			return
		}
		if equal {
			p.equal = append(p.equal, s)
		}
		p.read(decided, s.Start, start, before, equal, a, b)
		decided, before = s.End, equal
	}
	for len(xs) > 0 && len(ys) > 0 {
		x, y := xs[0], ys[0]
		from, to := max(x.Off-a.off, y.Off-b.off), min(x.Off+x.Len-a.off, y.Off+y.Len-b.off)
		switch {
		case x.Zero || y.Zero:
			settle(from, to, false)
		case x.ID == y.ID && x.ID != (chunk.ID{}) && x.ChunkOff-(x.Off-a.off) == y.ChunkOff-(y.Off-b.off):
			settle(from, to, true)
		}
		if x.Off+x.Len-a.off == to {
			xs = xs[1:]
		}
		if y.Off+y.Len-b.off == to {
			ys = ys[1:]
		}
	}
	p.read(decided, end, start, before, false, a, b)
}

// extents gives the runs of n bytes; fewer where the manifest cannot be read.
func (s side) extents(n int64) (list []index.Extent) {
	// The error comes up again when these bytes are brought.
	_ = s.f.Extents(s.off, n, func(x index.Extent) bool {
		list = append(list, x)
		return true
	})
	return list
}

// read notes that [from, to) of what begins at start has to be read, and whether a chunk in common lies before and
// after it.
func (p *pair) read(from, to, start uint64, before, after bool, a, b side) {
	begin := from
	for from < to {
		k := len(p.probes) - 1
		if k < 0 || p.probes[k].bytes >= window {
			p.probes = append(p.probes, &probe{})
			continue
		}
		w := p.probes[k]
		end, skip := min(to, from+window-w.bytes), int64(from-start)
		w.parts = append(w.parts, part{from, end, side{a.f, a.off + skip}, side{b.f, b.off + skip}})
		w.bytes += end - from
		w.edge = w.edge || before && from-begin < window || after && to-end < window
		from = end
	}
}
