package feed

import (
	"cmp"
	"context"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/uffd"
)

// bringer is implemented by images of which a part may lie in a bucket.
type bringer interface {
	// Bring is index.Store's.
	Bring(ctx context.Context, list []index.Chunk, came func(numbers []int))
}

// bringerOf gives who brings what lies in a bucket of images, nil where nothing can lie there.
func bringerOf(images Images) bringer {
	if s, ok := images.(Stored); ok && s.Store.HasBucket() {
		return s
	}
	return nil
}

// Bring is the store's.
func (s Stored) Bring(ctx context.Context, list []index.Chunk, came func(numbers []int)) {
	s.Store.Bring(ctx, list, came)
}

// awayFile is implemented by files of which a part may lie in a bucket.
type awayFile interface {
	Away(yield func(off, n int64, c index.Chunk) bool) error
}

// ahead has what lies in a bucket brought to this machine, the hot set first, and everything else as it lies there. It
// passes a sweep on as its contents come, so that who fetches is never kept from a demand by what nobody waits for: a
// demand goes to the bucket by itself.
type ahead struct {
	uffd.Supplier // the sweep is passed on to it
	queue         *prefetch.Queue
	from          bringer
	files         []prefetch.File
	hot           []index.Chunk
	hotOver       chan struct{} // closed when the hot set has been brought
	ctx           context.Context
	cancel        context.CancelFunc
	wg            sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond
	planned bool
	early   []prefetch.Range // swept before it was known where things lie
	spans   [][]span         // by file: what lies in the bucket, in order
	held    int              // ranges that have not been passed on
	hotCame []bool           // by piece of the hot set
	hotDone int              // of the first pieces all have come
}

// span is a stretch of a file whose contents lie in one chunk.
type span struct {
	off, end int64
	arrived  bool
	wanted   []prefetch.Range // as soon as it has come
}

// spanAt names a span.
type spanAt struct{ file, n int }

// newAhead begins to bring the hot set, if there is one; start goes on with the rest.
func newAhead(from bringer, hot []index.Chunk) *ahead {
	a := &ahead{from: from, hot: hot, hotCame: make([]bool, len(hot)), hotOver: make(chan struct{})}
	a.changed = sync.NewCond(&a.mu)
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.wg.Go(func() {
		defer close(a.hotOver)
		if len(hot) == 0 {
			return
		}
		from.Bring(a.ctx, hot, func(numbers []int) {
			if n, q := a.hotPart(numbers); q != nil {
				q.HotArrived(n)
			}
		})
	})
	return a
}

// aheadOf begins to bring what a restore needs first of images that may lie in a bucket; nil where nothing can lie
// there. The one who gets it closes it.
func aheadOf(o Options) *ahead {
	from := bringerOf(o.Images)
	if from == nil {
		return nil
	}
	var pieces []index.Chunk
	if k, ok := o.Images.(HotKeeper); ok && o.Profile != nil {
		if h, err := k.HotSet(); err == nil { // openHot tells what is wrong with it
			pieces = h.Pieces()
			h.Close()
		}
	}
	return newAhead(from, pieces)
}

// start brings everything, for a queue: sweeps of files are passed on to what stands before it.
func (a *ahead) start(files []prefetch.File, to uffd.Supplier, q *prefetch.Queue) {
	a.mu.Lock()
	a.files, a.Supplier, a.queue = files, to, q
	a.mu.Unlock()
	if n, _ := a.hotPart(nil); n > 0 {
		q.HotArrived(n)
	}
	a.wg.Go(func() {
		list, at := a.plan()
		<-a.hotOver
		a.from.Bring(a.ctx, list, func(numbers []int) {
			var of []spanAt
			for _, n := range numbers {
				of = append(of, at[n]...)
			}
			a.arrived(of)
		})
	})
}

// close ends it. Nobody may call it any more.
func (a *ahead) close() {
	a.cancel()
	a.wg.Wait()
}

// hotPart notes which pieces of the hot set have come, and gives how many bytes have, from its beginning, and the queue
// that is to know of it, if there is one yet.
func (a *ahead) hotPart(numbers []int) (int64, *prefetch.Queue) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range numbers {
		a.hotCame[n] = true
	}
	for a.hotDone < len(a.hotCame) && a.hotCame[a.hotDone] {
		a.hotDone++
	}
	return int64(a.hotDone) * index.HotPiece, a.queue
}

// plan finds out what lies in the bucket, and gives it in the order in which it lies there, and for each chunk the
// spans that it holds.
func (a *ahead) plan() (list []index.Chunk, at [][]spanAt) {
	spans := make([][]span, len(a.files))
	number := map[index.Chunk]int{}
	for i, f := range a.files {
		x, ok := f.(awayFile)
		if !ok {
			continue
		}
		// What cannot be found is not brought: reading it reports the error.
		_ = x.Away(func(off, n int64, c index.Chunk) bool {
			k, known := number[c]
			if !known {
				k = len(list)
				number[c] = k
				list, at = append(list, c), append(at, nil)
			}
			at[k] = append(at[k], spanAt{i, len(spans[i])})
			spans[i] = append(spans[i], span{off: off, end: off + n})
			return true
		})
	}
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(x, y int) int {
		return cmp.Or(cmp.Compare(list[x].Loc.Pack, list[y].Loc.Pack), cmp.Compare(list[x].Loc.Page, list[y].Loc.Page))
	})
	sorted, places := make([]index.Chunk, len(list)), make([][]spanAt, len(list))
	for i, n := range order {
		sorted[i], places[i] = list[n], at[n]
	}
	a.mu.Lock()
	a.spans, a.planned = spans, true
	early := a.early
	a.early, a.held = nil, a.held-len(early)
	now := a.hold(early)
	a.changed.Broadcast()
	a.mu.Unlock()
	a.pass(now)
	return sorted, places
}

// hold keeps back what has not come of ranges, and gives the rest. Call with mu held.
func (a *ahead) hold(ranges []prefetch.Range) (now []prefetch.Range) {
	for _, r := range ranges {
		if r.File < 0 || r.File >= len(a.spans) {
			now = append(now, r)
			continue
		}
		spans := a.spans[r.File]
		off := r.Off
		for i := sort.Search(len(spans), func(i int) bool { return spans[i].end > r.Off }); i < len(spans); i++ {
			s := &spans[i]
			if s.off >= r.End() {
				break
			}
			if s.arrived {
				continue
			}
			if from := max(s.off, off); from > off {
				now = append(now, prefetch.Range{File: r.File, Off: off, Len: from - off})
				off = from
			}
			end := min(s.end, r.End())
			s.wanted = append(s.wanted, prefetch.Range{File: r.File, Off: off, Len: end - off})
			a.held++
			off = end
		}
		if off < r.End() {
			now = append(now, prefetch.Range{File: r.File, Off: off, Len: r.End() - off})
		}
	}
	return now
}

// arrived notes that spans can be read, and passes on what was wanted of them.
func (a *ahead) arrived(of []spanAt) {
	a.mu.Lock()
	var now []prefetch.Range
	for _, x := range of {
		s := &a.spans[x.file][x.n]
		s.arrived = true
		now = append(now, s.wanted...)
		s.wanted = nil
	}
	a.mu.Unlock()
	a.pass(now)
	a.mu.Lock()
	a.held -= len(now)
	a.changed.Broadcast()
	a.mu.Unlock()
}

// pass passes ranges on, neighbours as one.
func (a *ahead) pass(ranges []prefetch.Range) {
	if len(ranges) == 0 {
		return
	}
	ranges = slices.Clone(ranges)
	slices.SortFunc(ranges, func(x, y prefetch.Range) int {
		return cmp.Or(cmp.Compare(x.File, y.File), cmp.Compare(x.Off, y.Off))
	})
	n := 0
	for _, r := range ranges[1:] {
		if last := &ranges[n]; r.File == last.File && r.Off == last.End() {
			last.Len += r.Len
			continue
		}
		n++
		ranges[n] = r
	}
	a.Supplier.Sweep(ranges[:n+1])
}

// Sweep passes on what is here, and the rest when it has come.
func (a *ahead) Sweep(ranges []prefetch.Range) {
	if len(a.hot) > 0 {
		a.queue.Warm() // its processes are there
	}
	a.mu.Lock()
	if !a.planned {
		a.early, a.held = append(a.early, ranges...), a.held+len(ranges)
		a.mu.Unlock()
		return
	}
	now := a.hold(ranges)
	a.mu.Unlock()
	a.pass(now)
}

// Drain waits until everything has been passed on, and then for that.
func (a *ahead) Drain(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() {
		a.mu.Lock()
		a.changed.Broadcast()
		a.mu.Unlock()
	})()
	a.mu.Lock()
	for a.held > 0 && ctx.Err() == nil {
		a.changed.Wait()
	}
	a.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	return a.Supplier.Drain(ctx)
}

// smallBytes is the largest file that counts as a small image.
const smallBytes = 4 << 20

// bringSmall has the images that CRIU reads by itself brought from the bucket where they lie there: hundreds of small
// reads, each of which would go there.
func bringSmall(images Images) {
	s, ok := images.(Stored)
	if !ok || !s.Store.HasBucket() {
		return
	}
	var list []index.Chunk
	for c, _ := s.Store.Checkpoint(s.Ref); c != nil; c, _ = c.Parent() { // reading reports errors
		for _, e := range c.Entries() {
			if !e.Mode.IsRegular() || e.Size > smallBytes || strings.HasPrefix(e.Path, "pages-") {
				continue
			}
			if f, err := c.Open(e.Path); err == nil {
				// reading reports what cannot be found
				_ = f.Away(func(_, _ int64, c index.Chunk) bool {
					list = append(list, c)
					return true
				})
				f.Close()
			}
		}
	}
	if len(list) > 0 {
		s.Bring(context.Background(), list, func([]int) {})
	}
}
