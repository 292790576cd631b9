package prefetch

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// class is why something is fetched.
type class int

const (
	demand class = iota
	hot
	sweep
	classes
)

// state of a unit.
type state uint8

const (
	idle      state = iota // nobody wants it
	wanted                 // by sweep or demand
	wantedHot              // by hot set
	inFlight               // a worker has it
	done                   // delivered
)

func (s state) waits() bool { return s == wanted || s == wantedHot }

// Queue orders the fetches of one checkpoint. Create it with New, and Close it.
type Queue struct {
	opts Options

	mu sync.Mutex
	// wakeAny: work was added, a worker may run, or closed; wakeExpress: the
	// same for the worker that takes demands only; wakeDrain: a run ended.
	wakeAny, wakeExpress, wakeDrain *sync.Cond

	fills bool      // there is a sink that keeps what it is given
	units [][]state // by file
	// heads has a bit for each unit of a file that begins what is stored
	// together; nil for files of which that is not known. It is there, and the
	// hot set in order, when planned is closed.
	heads   [][]uint64
	planned chan struct{}
	// demands are units somebody waits for, oldest first. Those whose unit
	// is in flight or done by the time they come up are passed over.
	demands []unitRef
	readers map[unitRef][]*reader
	joined  map[unitRef]bool // demanded while in flight
	swept   bool             // a sweep has been asked for
	blocks  []block          // of the packed hot set, not taken yet
	hotHere int64            // bytes of it that have come
	tails   []tail           // of the last demands, while recording
	lists   [classes][]Range // what hot set and sweep have not passed yet
	active  int              // background workers that may run, see adapt
	running int              // runs in flight, and those that rest
	resting []run            // what could not be read and is read again
	outage  outage           // in which nothing can be read
	// expressIdle: the worker that takes demands only waits for one.
	expressIdle bool
	// sweeping are runs in flight for the sweep; urgent is when something more
	// urgent came up the last time. See hold.
	sweeping int
	urgent   time.Time
	// demanded is when a demand came or was delivered the last time, waited how
	// many runs for demands are in flight. See Quiet.
	demanded  time.Time
	waited    int
	closed    bool
	stats     Stats
	rate      limiter
	rateTimer *time.Timer // wakes workers that wait for the rate

	located bool // see locateSoon
	stop    chan struct{}
	workers sync.WaitGroup
}

type unitRef struct{ file, unit int }

// Stats counts what a queue has done. Bytes are those of units fetched.
type Stats struct {
	DemandBytes, HotBytes, SweepBytes int64
	// ZeroBytes of these were zero and not read.
	ZeroBytes int64
	// Demands were asked for; Joined of them found their unit in flight.
	Demands, Joined int64
	Runs            int64
	// Refetched bytes had been delivered before.
	Refetched   int64
	FailedBytes int64
	Workers     int
}

// New starts a queue. Its workers run until Close.
func New(opts Options) (*Queue, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	for _, r := range opts.Hot {
		if r.File < 0 || r.File >= len(opts.Files) {
			return nil, fmt.Errorf("prefetch: the hot set has file %d of %d", r.File, len(opts.Files))
		}
	}
	q := &Queue{opts: opts, demanded: time.Now(), stop: make(chan struct{}), readers: make(map[unitRef][]*reader),
		joined: make(map[unitRef]bool), planned: make(chan struct{})}
	q.wakeAny = sync.NewCond(&q.mu)
	q.wakeExpress = sync.NewCond(&q.mu)
	q.wakeDrain = sync.NewCond(&q.mu)
	q.rate.perSecond = opts.Rate
	_, none := opts.Sink.(noSink)
	q.fills = !none
	for _, f := range opts.Files {
		q.units = append(q.units, make([]state, (f.Size()+UnitBytes-1)/UnitBytes))
	}
	if opts.Packed != nil && !opts.HotAway {
		q.hotHere = opts.Packed.Bytes()
	}
	if q.opts.Buffers == nil {
		q.opts.Buffers = newPool(opts.Workers+1, opts.RunBytes)
	}
	q.active = min(2*runtime.NumCPU(), opts.Workers)
	q.rateTimer = time.AfterFunc(time.Hour, func() {
		q.mu.Lock()
		q.wakeAny.Broadcast()
		q.mu.Unlock()
	})
	q.workers.Go(q.plan)
	for i := -1; i < opts.Workers; i++ {
		q.workers.Go(func() { q.work(i) })
	}
	q.workers.Go(q.adapt)
	q.workers.Go(q.advise)
	return q, nil
}

// plan finds out how the files are stored, which for 14 GB takes some milliseconds: whoever makes a queue need not wait
// for that.
func (q *Queue) plan() {
	defer close(q.planned)
	for _, f := range q.opts.Files {
		q.heads = append(q.heads, heads(f))
	}
	if q.opts.Packed == nil {
		q.opts.Hot = q.hotSet()
	}
}

// Close stops the workers and waits for the runs in flight. What is still
// wanted will not be fetched.
func (q *Queue) Close() error {
	q.mu.Lock()
	first := !q.closed
	if first {
		q.closed = true
		q.rateTimer.Stop()
		close(q.stop)
	}
	q.wakeAny.Broadcast()
	q.wakeExpress.Broadcast()
	q.wakeDrain.Broadcast()
	q.mu.Unlock()
	q.workers.Wait()
	if p, ok := q.opts.Buffers.(*pool); ok && first {
		return p.close()
	}
	return nil
}

// Demand asks for bytes that somebody waits for. It returns at once; bytes in
// flight are joined. When these are delivered AlreadyDelivered tells the sink, which may have been given them before
// somebody waited. When all have been delivered before, Demand tells the sink
// by AlreadyDelivered and does nothing, unless again is set.
func (q *Queue) Demand(r Range, again bool) {
	if q.opts.Recorder != nil {
		q.opts.Recorder.Touch(q.opts.Names[r.File], r.Off, r.Len)
	}
	q.mu.Lock()
	had, joined := true, false
	q.each(r, func(u unitRef, s *state) {
		if *s == done && !again {
			return
		}
		had = false
		if q.makeUrgent(u, s) {
			joined, q.joined[u] = true, true
		}
	})
	q.count(!had, joined)
	q.mu.Unlock()
	if had {
		q.opts.Sink.AlreadyDelivered(r)
	}
}

// count notes what was asked for. Preconditions: mu is held.
func (q *Queue) count(asked, joined bool) {
	if asked {
		q.stats.Demands++
	}
	if joined {
		q.stats.Joined++
	}
}

// makeUrgent puts a unit before everything else and reports whether it is in flight.
// Preconditions: mu is held.
func (q *Queue) makeUrgent(u unitRef, s *state) (joined bool) {
	switch *s {
	case inFlight:
		return true
	case done:
		q.stats.Refetched += UnitBytes
	}
	if !s.waits() {
		*s = wanted
	}
	q.locateSoon()
	q.demands = append(q.demands, u)
	q.urgent = time.Now()
	q.demanded = q.urgent
	if q.expressIdle {
		q.expressIdle = false
		q.wakeExpress.Signal()
	} else {
		q.wakeAny.Signal()
	}
	return false
}

// Sweep asks for ranges in the background, after the hot set.
func (q *Queue) Sweep(ranges []Range) {
	<-q.planned
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wantHot()
	q.want(sweep, ranges)
}

// Warm asks for the hot set alone.
func (q *Queue) Warm() {
	<-q.planned
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wantHot()
}

// wantHot asks for the hot set, once. Preconditions: mu is held.
func (q *Queue) wantHot() {
	if q.swept {
		return
	}
	q.swept = true
	if q.opts.Packed != nil {
		q.blocks = q.opts.Packed.blocks
		q.wakeAny.Broadcast()
		return
	}
	q.want(hot, q.opts.Hot)
}

// want adds ranges to a list. Preconditions: mu is held.
func (q *Queue) want(c class, ranges []Range) {
	as := wanted
	if c == hot {
		as = wantedHot
	}
	for _, r := range ranges {
		q.each(r, func(_ unitRef, s *state) {
			if *s == idle || *s == wanted {
				*s = max(*s, as)
			}
		})
	}
	q.lists[c] = append(q.lists[c], ranges...)
	q.locateSoon()
	q.wakeAny.Broadcast()
}

// Refetch forgets that ranges have been delivered and sweeps them once more.
func (q *Queue) Refetch(ranges []Range) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range ranges {
		q.each(r, func(_ unitRef, s *state) {
			if *s == done {
				*s = idle
				q.stats.Refetched += UnitBytes
			}
		})
	}
	q.want(sweep, ranges)
}

// each calls fn for the units of a range. Preconditions: mu is held.
func (q *Queue) each(r Range, fn func(unitRef, *state)) {
	if r.Len <= 0 || r.File < 0 || r.File >= len(q.units) {
		return
	}
	units := q.units[r.File]
	for u := r.Off / UnitBytes; u <= (r.End()-1)/UnitBytes && u < int64(len(units)); u++ {
		fn(unitRef{r.File, int(u)}, &units[u])
	}
}

// Drain waits until nothing is wanted or in flight, or ctx is done.
func (q *Queue) Drain(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() {
		q.mu.Lock()
		q.wakeDrain.Broadcast()
		q.mu.Unlock()
	})()
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.pending() && !q.closed && ctx.Err() == nil {
		q.wakeDrain.Wait()
	}
	return ctx.Err()
}

// Quiet returns how long nobody has waited for anything.
func (q *Queue) Quiet() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.skip(); len(q.demands) > 0 || q.waited > 0 {
		return 0
	}
	return time.Since(q.demanded)
}

// HotDone reports whether the hot set has been asked for and all of it has been
// taken by workers.
func (q *Queue) HotDone() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.swept && len(q.lists[hot]) == 0 && len(q.blocks) == 0
}

// Stats returns what was counted so far.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.stats
	s.Workers = q.active
	return s
}

// pending reports whether there is work. Preconditions: mu is held.
func (q *Queue) pending() bool {
	q.skip()
	return q.running > 0 || len(q.demands) > 0 || len(q.lists[hot]) > 0 || len(q.lists[sweep]) > 0 || len(q.blocks) > 0
}

// adapt follows the throughput: another worker joins as long as that made it
// at least 5 % better, one leaves when it did not, and now and then the next
// number is tried again, since what the source can do changes.
func (q *Queue) adapt() {
	t := time.NewTicker(q.opts.window)
	defer t.Stop()
	var c workerTuner
	var last int64
	for {
		select {
		case <-q.stop:
			return
		case <-t.C:
		}
		q.mu.Lock()
		total := q.stats.DemandBytes + q.stats.HotBytes + q.stats.SweepBytes
		busy := len(q.lists[hot])+len(q.lists[sweep])+len(q.blocks) > 0
		if n := c.step(q.active, total-last, busy); n != q.active {
			q.active = max(1, min(n, q.opts.Workers))
			q.wakeAny.Broadcast()
		}
		last = total
		q.mu.Unlock()
	}
}

// workerTuner decides how many workers to use from the bytes each window brought.
type workerTuner struct {
	best  int64 // bytes of the last window that counted
	tried bool  // the last step added a worker
	rest  int   // windows until the next try
}

func (c *workerTuner) step(active int, bytes int64, busy bool) int {
	if !busy {
		c.best, c.tried, c.rest = 0, false, 0
		return active
	}
	switch {
	case c.tried && bytes < c.best+c.best/20:
		// The additional worker was no gain.
		c.tried, c.rest = false, 20
		return active - 1
	case c.rest > 0:
		c.rest--
		c.best, c.tried = bytes, false
		return active
	default:
		c.best, c.tried = bytes, true
		return active + 1
	}
}
