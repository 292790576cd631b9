package cow

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

const (
	pageSize = criuimg.PageSize
	// window is what is read at once, about half a chunk.
	window = 128 << 10
	// few is the number of windows that are all read, or looked at first where a region has more.
	few = 4
	// region is the number of windows for which a few stand: 128 MiB.
	region = 1024
)

// File is a pages file in a store.
type File interface {
	ReadAt(p []byte, off int64) (int, error)
	Extents(off, n int64, yield func(index.Extent) bool) error
}

// Find gives for each task of c the pages to leave to CRIU: those that are equal in it and its parent, or in it and a
// child, by rising address. files has the files that the tasks' ranges name. It returns nil when there are none. Pages
// that cannot be read count as not equal; the error comes up when they are brought.
func Find(c *criuimg.Checkpoint, files map[string]File) [][]criuimg.Span {
	inheritable := c.Inherited()
	if len(inheritable) == 0 {
		return nil
	}
	pairs := make([]pair, len(inheritable))
	each(len(pairs), func(i int) { pairs[i] = newPair(c, files, inheritable[i]) })

	for _, stage := range []func(*pair) []*probe{(*pair).first, (*pair).second} {
		var now []*probe
		for i := range pairs {
			now = append(now, stage(&pairs[i])...)
		}
		each(len(now), func(i int) { now[i].look() })
	}
	all := make([][]criuimg.Span, len(c.Tasks))
	some := false
	for i, h := range inheritable {
		equal := pairs[i].equal
		for _, w := range pairs[i].probes {
			equal = append(equal, w.equal...)
		}
		all[h.Parent], all[h.Child] = append(all[h.Parent], equal...), append(all[h.Child], equal...)
		some = some || len(equal) > 0
	}
	if !some {
		return nil
	}
	for i := range all {
		all[i] = join(all[i])
	}
	return all
}

// each calls fn for 0 to n-1, on all processors.
func each(n int, fn func(int)) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				fn(i)
			}
		})
	}
	workers.Wait()
}

// join sorts spans and joins those that touch or overlap.
func join(spans []criuimg.Span) (out []criuimg.Span) {
	slices.SortFunc(spans, func(a, b criuimg.Span) int { return cmp.Compare(a.Start, b.Start) })
	for _, s := range spans {
		if k := len(out) - 1; k >= 0 && s.Start <= out[k].End {
			out[k].End = max(out[k].End, s.End)
			continue
		}
		out = append(out, s)
	}
	return out
}

// side is where one of the two has its bytes.
type side struct {
	f   File
	off int64
}

// pair is a mapping of a parent and a child.
type pair struct {
	equal  []criuimg.Span // known without reading
	probes []*probe       // by address
}

func newPair(c *criuimg.Checkpoint, files map[string]File, h criuimg.Inheritable) (p pair) {
	a, b := within(c.Tasks[h.Parent].Ranges, h), within(c.Tasks[h.Child].Ranges, h)
	for len(a) > 0 && len(b) > 0 {
		start, end := max(a[0].Start, b[0].Start), min(a[0].End, b[0].End)
		if start < end {
			fa, fb := files[a[0].File], files[b[0].File]
			if fa != nil && fb != nil {
				p.compare(start, end, side{fa, a[0].Off + int64(start-a[0].Start)},
					side{fb, b[0].Off + int64(start-b[0].Start)})
			}
		}
		if a[0].End == end {
			a = a[1:]
		}
		if b[0].End == end {
			b = b[1:]
		}
	}
	return p
}

// within gives the ranges of a mapping: no range lies in two.
func within(all []criuimg.Range, h criuimg.Inheritable) []criuimg.Range {
	at := func(addr uint64) int {
		i, _ := slices.BinarySearchFunc(all, addr, func(r criuimg.Range, addr uint64) int {
			return cmp.Compare(r.Start, addr)
		})
		return i
	}
	return all[at(h.Start):at(h.End)]
}
