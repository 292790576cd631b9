package cow

import (
	"bytes"
	"slices"
	"sync"

	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

// probe is a window of a mapping that has to be read: about as many bytes as window says, in one part or in many.
type probe struct {
	parts  []part
	bytes  uint64
	edge   bool // it has pages beside a chunk in common
	chosen bool // to be looked at in any case
	equal  []criuimg.Span
}

// part is a run of pages.
type part struct {
	start, end uint64
	a, b       side
}

// look compares the window's pages.
func (w *probe) look() {
	for _, p := range w.parts {
		w.compare(p)
	}
}

// buffers holds pairs of buffers: of large processes much is read.
var buffers = sync.Pool{New: func() any { return new([2][window]byte) }}

func (w *probe) compare(p part) {
	buf := buffers.Get().(*[2][window]byte)
	defer buffers.Put(buf)
	n := int(p.end - p.start)
	a, b := buf[0][:n], buf[1][:n]
	if _, err := p.a.f.ReadAt(a, p.a.off); err != nil {
		return
	}
	if _, err := p.b.f.ReadAt(b, p.b.off); err != nil {
		return
	}
	for i := 0; i < n; i += pageSize {
		if !bytes.Equal(a[i:i+pageSize], b[i:i+pageSize]) {
			continue
		}
		at := p.start + uint64(i)
		if k := len(w.equal) - 1; k >= 0 && w.equal[k].End == at {
			w.equal[k].End += pageSize
			continue
		}
		w.equal = append(w.equal, criuimg.Span{Start: at, End: at + pageSize})
	}
}

// first gives what is looked at in any case: all windows of a region that has few of them, else a few in even
// distances, and those beside a chunk in common.
func (p *pair) first() (list []*probe) {
	choose := func(w *probe) {
		if !w.chosen {
			w.chosen, list = true, append(list, w)
		}
	}
	for r := range slices.Chunk(p.probes, region) {
		for k := range few {
			choose(r[(2*k+1)*len(r)/(2*few)])
		}
		for _, w := range r {
			if w.edge || len(r) <= few {
				choose(w)
			}
		}
	}
	return list
}

// second gives the rest of the regions in which these windows have equal pages. Those beside a chunk in common have
// some as a rule, which says nothing of others. Where most pages are equal the rest is taken for equal without a look.
func (p *pair) second() (list []*probe) {
	for r := range slices.Chunk(p.probes, region) {
		var looked, equal uint64
		for _, w := range r {
			if w.chosen && !w.edge {
				looked += w.bytes
				for _, s := range w.equal {
					equal += s.End - s.Start
				}
			}
		}
		for _, w := range r {
			switch {
			case w.chosen || equal == 0:
			case equal >= looked/4*3:
				for _, x := range w.parts {
					w.equal = append(w.equal, criuimg.Span{Start: x.start, End: x.end})
				}
			default:
				list = append(list, w)
			}
		}
	}
	return list
}
