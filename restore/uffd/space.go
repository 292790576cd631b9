package uffd

import (
	"math/bits"
	"slices"
	"sort"
	"sync/atomic"

	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

const pageSize = criuimg.PageSize

// piece says that the pages from start to end have their contents in a file
// from offset off on. Which of them still have to be filled is in the space's
// bitmaps.
type piece struct {
	start, end uint64
	file       int
	off        int64
	gen        uint64 // of the install it came with
	// wiped: a forked child gets zeros instead (MADV_WIPEONFORK), as far as is known.
	wiped bool
}

func (p *piece) size() int64   { return int64(p.end - p.start) }
func (p *piece) offEnd() int64 { return p.off + p.size() }
func (p *piece) part(s, e uint64) *piece {
	return &piece{start: s, end: e, file: p.file, off: p.off + int64(s-p.start), gen: p.gen, wiped: p.wiped}
}

// space is what is known of one address space: where contents belong that have
// not been filled in yet. Each file page belongs to at most one address.
//
// Reading is safe from many goroutines, markDone too; every other change needs
// the space to itself.
type space struct {
	live  pieces // eligible for filling
	areas areas  // what is registered, for ordering events: see events.go
	// done has a bit for each page of each file: filled, or no longer wanted.
	done [][]uint64
	left atomic.Int64 // pages of pieces not done

	// The rest is about events since the space was last settled; it is empty
	// in a settled space.
	forked    bool     // from a parent, and never settled
	gen       uint64   // of the newest install
	moving    []uint64 // installs by mremaps whose UNMAP is to come
	displaced []*piece // displaced by an overtaking REMAP
}

// newSpace starts a space with the pieces ps, whose files are below files.
func newSpace(files int, vmas []criuimg.VMA, ps []*piece) *space {
	s := &space{done: make([][]uint64, files)}
	s.live = newPieces(files, ps)
	for i, f := range s.live.byFile {
		if len(f) > 0 {
			s.done[i] = make([]uint64, (f[len(f)-1].offEnd()/pageSize+63)/64)
		}
	}
	for _, p := range ps {
		s.left.Add(p.size() / pageSize)
	}
	for _, v := range vmas {
		if v.Lazy() {
			s.areas.install(v.Start, v.End, 0)
		}
	}
	return s
}

func (s *space) isDone(file int, off int64) bool {
	page := off / pageSize
	return atomic.LoadUint64(&s.done[file][page/64])&(1<<(page%64)) != 0
}

// markDone notes that file pages need no filling any more.
func (s *space) markDone(file int, off, n int64) {
	s.setBits(file, off, n, true)
}

func (s *space) setBits(file int, off, n int64, set bool) {
	words := s.done[file]
	for page, end := off/pageSize, (off+n)/pageSize; page < end; {
		k := min(64-page%64, end-page)
		mask := (^uint64(0) >> (64 - k)) << (page % 64)
		if set {
			old := atomic.OrUint64(&words[page/64], mask)
			s.left.Add(-int64(bits.OnesCount64(mask &^ old)))
		} else {
			old := atomic.AndUint64(&words[page/64], ^mask)
			s.left.Add(int64(bits.OnesCount64(mask & old)))
		}
		page += k
	}
}

// undone returns the first run of pages of the file in [off, end) that are not
// done: empty when from equals to.
func (s *space) undone(file int, off, end int64) (from, to int64) {
	page, last := off/pageSize, end/pageSize
	page = s.scan(file, page, last, 0)
	return page * pageSize, s.scan(file, page, last, ^uint64(0)) * pageSize
}

// scan returns the first page in [page, last) whose bit, after inversion with
// inv, is 0; or last.
func (s *space) scan(file int, page, last int64, inv uint64) int64 {
	words := s.done[file]
	for page < last {
		w := (^(atomic.LoadUint64(&words[page/64]) ^ inv)) >> (page % 64)
		if w != 0 {
			return min(page+int64(bits.TrailingZeros64(w)), last)
		}
		page += 64 - page%64
	}
	return last
}

// next returns the first run of file pages in [off, end) that is to be filled
// and the address it belongs to: n is 0 when there is none.
func (s *space) next(file int, off, end int64) (addr uint64, at, n int64) {
	ps := s.live.byFile[file]
	for i := sort.Search(len(ps), func(i int) bool { return ps[i].offEnd() > off }); i < len(ps) &&
		ps[i].off < end; i++ {
		p := ps[i]
		from, to := s.undone(file, max(off, p.off), min(end, p.offEnd()))
		if from < to {
			return p.start + uint64(from-p.off), from, to - from
		}
	}
	return 0, 0, 0
}

// find returns where the contents of the page at addr are, ok false when it
// has none left to be filled.
func (s *space) find(addr uint64) (file int, off int64, ok bool) {
	p := s.live.at(addr)
	if p == nil {
		return 0, 0, false
	}
	off = p.off + int64(addr-p.start)
	return p.file, off, !s.isDone(p.file, off)
}

// empty returns how far from addr on, at most limit bytes, memory is known to be
// registered and without contents.
func (s *space) empty(addr uint64, limit int64) int64 {
	end := addr + pageSize
	if i := sort.Search(len(s.areas), func(i int) bool { return s.areas[i].end > addr }); i < len(s.areas) &&
		s.areas[i].start <= addr {
		end = min(s.areas[i].end, addr+uint64(limit))
	}
	if i := s.live.after(addr); i < len(s.live.byAddr) {
		end = max(min(end, s.live.byAddr[i].start), addr+pageSize)
	}
	return int64(end - addr)
}

// pieces holds disjoint pieces, sorted by address and, for each file, by
// offset. Changes cost a copy of the slices: they come from events, which are
// rare next to fills.
type pieces struct {
	byAddr []*piece
	byFile [][]*piece
}

func newPieces(files int, ps []*piece) pieces {
	x := pieces{byAddr: slices.Clone(ps), byFile: make([][]*piece, files)}
	slices.SortFunc(x.byAddr, func(a, b *piece) int { return cmp(a.start, b.start) })
	for _, p := range x.byAddr {
		x.byFile[p.file] = append(x.byFile[p.file], p)
	}
	for _, f := range x.byFile {
		slices.SortFunc(f, func(a, b *piece) int { return cmp(a.off, b.off) })
	}
	return x
}

func cmp[T uint64 | int64](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// after returns the index of the first piece that ends after addr.
func (x *pieces) after(addr uint64) int {
	return sort.Search(len(x.byAddr), func(i int) bool { return x.byAddr[i].end > addr })
}

func (x *pieces) at(addr uint64) *piece {
	if i := x.after(addr); i < len(x.byAddr) && x.byAddr[i].start <= addr {
		return x.byAddr[i]
	}
	return nil
}

// take removes and returns what lies in [start, end), cutting pieces at its
// ends. keep, when not nil, tells which pieces to leave alone.
func (x *pieces) take(start, end uint64, keep func(*piece) bool) []*piece {
	i := x.after(start)
	j := i
	var out, in []*piece
	for ; j < len(x.byAddr) && x.byAddr[j].start < end; j++ {
		p := x.byAddr[j]
		if keep != nil && keep(p) {
			in = append(in, p)
			continue
		}
		x.unfile(p)
		s, e := max(p.start, start), min(p.end, end)
		if p.start < s {
			in = append(in, x.file(p.part(p.start, s)))
		}
		out = append(out, p.part(s, e))
		if e < p.end {
			in = append(in, x.file(p.part(e, p.end)))
		}
	}
	if len(out) > 0 {
		x.byAddr = slices.Replace(x.byAddr, i, j, in...)
	}
	return out
}

// put adds a piece where there is none.
func (x *pieces) put(p *piece) {
	x.byAddr = slices.Insert(x.byAddr, x.after(p.start), p)
	x.file(p)
}

func (x *pieces) file(p *piece) *piece {
	f := x.byFile[p.file]
	i := sort.Search(len(f), func(i int) bool { return f[i].off > p.off })
	x.byFile[p.file] = slices.Insert(f, i, p)
	return p
}

func (x *pieces) unfile(p *piece) {
	f := x.byFile[p.file]
	i := sort.Search(len(f), func(i int) bool { return f[i].off >= p.off })
	x.byFile[p.file] = slices.Delete(f, i, i+1)
}
