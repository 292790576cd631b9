package uffd

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

const lazyFlags = 0x22 // MAP_PRIVATE|MAP_ANONYMOUS

// world is a model of one process's address space and of how the kernel tells
// of its changes, for holding space to the truth. Addresses are in pages.
//
// What no order of events lets anyone tell is left out. A report is late by at
// most one whole call of another thread, and by less when it is about memory
// that grew, which is not reported; a fork is reported before another call takes
// effect; and before a fork, or in the child, no memory grows over what another
// thread is just unmapping. In a kernel each takes a thread that is
// preempted for the length of several round trips just between giving up its
// lock on the memory and queueing its report. Nor does an mremap move what grew
// without what it grew from, or a munmap of nothing else come late.
type world struct {
	t       *testing.T
	rnd     *rand.Rand
	cells   []cell
	threads []*worker
	queue   []event
	space   *space
	files   int
	vmas    int // counts mappings
	log     []string
	depth   int // of forks
}

const zero = -1

// cell is one page of address space.
type cell struct {
	owner   int // thread that has it mapped, 0 when free
	vma     int // the mapping it is part of
	want    int // file page it must read as, or zero
	present bool
	either  bool // a madvise is under way: zero will do as well
	hidden  bool // an mremap brought it here that has not returned
	grown   bool // not reported
	ghost   bool // unmapped by another thread just before the fork
}

// worker is a thread: it may issue its next call when events is empty.
type worker struct {
	id     int
	events []event // to be queued, one by one
	queued bool
	eager  bool   // the call is about memory that grew
	zap    [2]int // madvise whose event was read
}

type event struct {
	w    *worker
	kind uint8
	a, b [2]int // ranges
	// mremap: what it brought, which others know of when it returns
	hidden [2]int
	snap   []cell // fork: the child's memory
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), cells: make([]cell, 160)}
	for i := range w.cells {
		w.cells[i].want = zero
	}
	var vmas []criuimg.VMA
	var ps []*piece
	at, page := 0, 0
	for id := 1; id <= 3; id++ {
		w.threads = append(w.threads, &worker{id: id})
		for range 3 {
			n := 2 + w.rnd.IntN(8)
			vmas = append(vmas, criuimg.VMA{Start: uint64(at) * pageSize, End: uint64(at+n) * pageSize,
				Flags: lazyFlags})
			w.vmas++
			for k := range n {
				w.cells[at+k].owner, w.cells[at+k].vma = id, w.vmas
			}
			from := w.rnd.IntN(n)
			to := from + 1 + w.rnd.IntN(n-from)
			ps = append(ps, &piece{start: uint64(at+from) * pageSize, end: uint64(at+to) * pageSize,
				off: int64(page) * pageSize})
			for k := from; k < to; k++ {
				w.cells[at+k].want = page
				page++
			}
			at += n + w.rnd.IntN(3)
		}
	}
	w.files = page
	w.space = newSpace(1, vmas, ps)
	return w
}

func (w *world) logf(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

// own picks a run of pages of one of a thread's mappings.
func (w *world) own(id int) (r [2]int, ok bool) {
	var at []int
	for i, c := range w.cells {
		if c.owner == id {
			at = append(at, i)
		}
	}
	if len(at) == 0 {
		return r, false
	}
	s := at[w.rnd.IntN(len(at))]
	e := s + 1
	for n := w.rnd.IntN(6); n > 0 && e < len(w.cells) && w.cells[e].owner == id &&
		w.cells[e].vma == w.cells[s].vma; n-- {
		e++
	}
	return [2]int{s, e}, true
}

// free picks a run of n free pages, the lowest or any: kernels reuse eagerly.
func (w *world) free(n int) (r [2]int, ok bool) {
	start := 0
	if w.rnd.IntN(3) == 0 {
		start = w.rnd.IntN(len(w.cells))
	}
	run := 0
	for i := start; i < len(w.cells); i++ {
		if w.cells[i].owner != 0 {
			run = 0
			continue
		}
		if run++; run == n {
			return [2]int{i + 1 - n, i + 1}, true
		}
	}
	return r, false
}

// call lets a thread make a system call that takes effect now.
func (w *world) call(th *worker) {
	r, ok := w.own(th.id)
	if !ok {
		return
	}
	cs := w.cells[r[0]:r[1]]
	th.eager = slices.ContainsFunc(cs, func(c cell) bool { return c.grown })
	switch w.rnd.IntN(7) {
	case 0: // munmap
		alone := cs[0].grown
		for i := range cs {
			cs[i] = cell{want: zero}
		}
		th.events = []event{{w: th, kind: eventUnmap, a: r}}
		w.logf("%d munmap %v", th.id, r)
		if alone {
			w.enqueue(th)
		}
	case 1, 2, 3: // mremap that moves, and may grow, which is not reported
		if cs[0].grown {
			return
		}
		grows := 0
		if w.rnd.IntN(4) == 0 && (r[1] == len(w.cells) || w.cells[r[1]].vma != cs[0].vma) {
			grows = 1 + w.rnd.IntN(3)
		}
		to, ok := w.free(len(cs) + grows)
		if !ok || slices.ContainsFunc(w.cells[to[1]-grows:to[1]], func(c cell) bool { return c.ghost }) {
			return
		}
		w.vmas++
		for i := range to[1] - to[0] {
			c := cell{owner: th.id, want: zero, grown: true}
			if i < len(cs) {
				c, cs[i] = cs[i], cell{want: zero}
				c.grown = false
			}
			c.hidden, c.vma = true, w.vmas
			w.cells[to[0]+i] = c
		}
		th.events = []event{{w: th, kind: eventRemap, a: r, b: [2]int{to[0], to[0] + len(cs)}, hidden: to},
			{w: th, kind: eventUnmap, a: r}}
		w.logf("%d mremap %v %v", th.id, r, to)
	case 4: // madvise: takes effect after the event was read
		th.events = []event{{w: th, kind: eventRemove, a: r}}
		for i := range cs {
			cs[i].either = true
		}
		w.logf("%d madvise %v", th.id, r)
	case 5: // mremap that grows in place: no event
		for n := 1 + w.rnd.IntN(4); n > 0 && r[1] < len(w.cells) && w.cells[r[1]].owner == 0 &&
			!w.cells[r[1]].ghost; n-- {
			w.cells[r[1]] = cell{owner: th.id, vma: cs[0].vma, want: zero, grown: true}
			r[1]++
		}
		w.logf("%d grow %v", th.id, r)
	case 6:
		if w.depth == 2 {
			return
		}
		snap := slices.Clone(w.cells)
		for _, other := range w.threads {
			for _, e := range other.events {
				for i := e.a[0]; i < e.a[1]; i++ {
					snap[i].ghost = snap[i].ghost || snap[i].owner == 0
					snap[i].hidden = snap[i].hidden || snap[i].grown
				}
			}
		}
		th.events = []event{{w: th, kind: eventFork, snap: snap}}
		w.logf("%d fork", th.id)
		w.enqueue(th)
	}
}

// enqueue queues a thread's next report. What is about memory that grew does not
// overtake.
func (w *world) enqueue(th *worker) {
	if th.eager {
		for _, eager := range []bool{false, true} {
			for _, other := range w.threads {
				if other != th && other.eager == eager {
					w.push(other)
				}
			}
		}
	}
	w.push(th)
}

func (w *world) push(th *worker) {
	if len(th.events) > 0 && !th.queued {
		w.queue = append(w.queue, th.events[0])
		th.queued = true
	}
}

// read takes n events like one read call.
func (w *world) read(n int) {
	batch := slices.Clone(w.queue[:n])
	w.queue = w.queue[n:]
	for _, e := range batch {
		s, end := uint64(e.a[0])*pageSize, uint64(e.a[1])*pageSize
		switch e.kind {
		case eventUnmap:
			w.logf("  UNMAP %v", e.a)
			w.space.unmap(s, end)
		case eventRemap:
			w.logf("  REMAP %v %v", e.a, e.b)
			w.space.remap(s, uint64(e.b[0])*pageSize, end-s)
			for i := e.hidden[0]; i < e.hidden[1]; i++ {
				w.cells[i].hidden = false
			}
		case eventRemove:
			w.logf("  REMOVE %v", e.a)
			w.space.remove(s, end)
			e.w.zap = e.a
		case eventFork:
			w.logf("  FORK")
			w.checkChild(w.space.fork(), e.snap)
		}
		e.w.events = e.w.events[1:]
		e.w.queued = false
		for _, th := range w.threads {
			if th != e.w && (th.eager || len(e.w.events) == 0) {
				w.enqueue(th)
			}
		}
	}
}

func (w *world) zapped(th *worker) {
	for i := th.zap[0]; i < th.zap[1]; i++ {
		w.cells[i].want, w.cells[i].present, w.cells[i].either = zero, false, false
	}
	th.zap = [2]int{}
}

// prober answers like the kernel, which now and then cannot any more.
func (w *world) prober(cells []cell) probe {
	until := -1
	if w.rnd.IntN(3) == 0 {
		until = w.rnd.IntN(40)
	}
	return func(start, end uint64) (yes, sure bool) {
		if until--; until == -1 {
			until = 0
			return false, false
		}
		if start > end {
			return false, true // below address 0
		}
		for i := start / pageSize; i < end/pageSize; i++ {
			if i >= uint64(len(cells)) || cells[i].owner == 0 || cells[i].vma != cells[start/pageSize].vma {
				return false, true
			}
		}
		return true, true
	}
}

// check compares a settled space with the truth.
func (w *world) check(who string, s *space, cells []cell) {
	for i, c := range cells {
		if c.owner == 0 || c.present || c.hidden {
			continue
		}
		_, off, ok := s.find(uint64(i) * pageSize)
		got := zero
		if ok {
			got = int(off / pageSize)
		}
		if got != c.want && !(c.either && got == zero) {
			for _, l := range w.log {
				w.t.Log(l)
			}
			w.t.Fatalf("%s: page %d would be filled with %d, want %d", who, i, got, c.want)
		}
	}
	var left int64
	for _, p := range s.live.byAddr {
		for _, u := range s.unfilled(nil, p) {
			left += u.size() / pageSize
		}
	}
	if got := s.left.Load(); got != left {
		for _, l := range w.log {
			w.t.Log(l)
		}
		w.t.Fatalf("%s: %d pages left, counted %d", who, got, left)
	}
}

// checkChild lets the child of a thread live on until its space has settled. It
// has that thread only, which may change all that its parent had.
func (w *world) checkChild(c *space, snap []cell) {
	child := &world{t: w.t, rnd: w.rnd, cells: snap, threads: []*worker{{id: 1}}, space: c, files: w.files,
		vmas: w.vmas, depth: w.depth + 1, log: append(slices.Clone(w.log), "child")}
	for i := range snap {
		switch {
		case snap[i].hidden:
			snap[i].owner = 2 // nobody knows of it
		case snap[i].owner != 0:
			snap[i].owner = 1
		}
	}
	for !child.step() {
	}
}

// step has a child that has not settled do something.
func (w *world) step() (settled bool) {
	th := w.threads[0]
	switch {
	case w.rnd.IntN(3) == 0 && len(th.events) == 0 && w.space.settle(w.prober(w.cells)):
		w.check("child", w.space, w.cells)
		return true
	case th.zap != [2]int{}:
		w.zapped(th)
	case len(w.queue) > 0:
		w.read(1)
	case len(th.events) > 0:
		w.enqueue(th)
	default:
		w.call(th)
	}
	return false
}

// fill lets the server fill what a run of file pages is needed for.
func (w *world) fill() {
	off := int64(w.rnd.IntN(w.files)) * pageSize
	addr, at, n := w.space.next(0, off, off+4*pageSize)
	for k := int64(0); k < n; k += pageSize {
		c := &w.cells[addr/pageSize]
		if c.owner != 0 && !c.present {
			if c.want != int(at/pageSize) && !c.either {
				w.t.Fatalf("filled page %d with %d, want %d", addr/pageSize, at/pageSize, c.want)
			}
			c.present = true
		}
		w.space.markDone(0, at, pageSize)
		addr, at = addr+pageSize, at+pageSize
	}
}

// TestSpaceFollowsEvents runs threads that remap, unmap, madvise, grow and
// fork, delivers their events in all the orders a kernel may choose, and
// compares every settled state with what the process must see.
func TestSpaceFollowsEvents(t *testing.T) {
	runs := 2000
	if testing.Short() {
		runs = 300
	}
	for seed := range uint64(runs) {
		w := newWorld(t, seed)
		for range 120 {
			th := w.threads[w.rnd.IntN(len(w.threads))]
			switch {
			case th.zap != [2]int{}:
				w.zapped(th)
			case len(th.events) > 0 && !th.queued:
				w.enqueue(th)
			case len(th.events) == 0:
				w.call(th)
			}
			if len(w.queue) > 0 && w.rnd.IntN(2) == 0 {
				w.read(1 + w.rnd.IntN(len(w.queue)))
			}
			quiet := !slices.ContainsFunc(w.threads, func(th *worker) bool { return len(th.events) > 0 })
			if quiet && w.rnd.IntN(4) > 0 {
				w.logf("settle")
				if w.space.settle(w.prober(w.cells)) {
					w.check("parent", w.space, w.cells)
					w.fill()
				}
			}
		}
	}
}

func TestNext(t *testing.T) {
	ps := []*piece{
		{start: 10 * pageSize, end: 14 * pageSize, off: 0},
		{start: 20 * pageSize, end: 90 * pageSize, off: 6 * pageSize},
	}
	s := newSpace(2, nil, ps)
	s.markDone(0, 1*pageSize, 1*pageSize)
	s.markDone(0, 8*pageSize, 60*pageSize)
	for _, c := range []struct{ off, end, addr, at, n int64 }{
		{0, 4, 10, 0, 1},
		{1, 4, 12, 2, 2},
		{4, 6, 0, 0, 0},
		{3, 100, 13, 3, 1},
		{4, 100, 20, 6, 2},
		{8, 100, 82, 68, 8},
		{8, 70, 82, 68, 2},
	} {
		addr, at, n := s.next(0, c.off*pageSize, c.end*pageSize)
		if int64(addr) != c.addr*pageSize || at != c.at*pageSize || n != c.n*pageSize {
			t.Errorf("next(%d, %d) = %d, %d, %d; want %d, %d, %d", c.off, c.end, addr/pageSize, at/pageSize, n/pageSize,
				c.addr, c.at, c.n)
		}
	}
	if s.left.Load() != 3+10 {
		t.Errorf("%d pages left", s.left.Load())
	}
}
