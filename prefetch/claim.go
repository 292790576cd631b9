package prefetch

import (
	"runtime"
	"slices"
	"time"
)

// run is what a worker fetches at a time: it reads the range and delivers the
// parts of it that are wanted, one behind the other.
type run struct {
	Range
	parts []Range
	class class
	// first is the part of it that somebody waits for: it is delivered before
	// the rest.
	first Range
	// packed is the block of the packed hot set that has its parts; Range is
	// then the first of them only.
	packed *block
	rest   rest // zero unless it could not be read before
}

// skip drops from the heads of the lists what needs no fetching any more.
// Preconditions: mu is held.
func (q *Queue) skip() {
	for len(q.demands) > 0 && !q.units[q.demands[0].file][q.demands[0].unit].waits() {
		q.demands = q.demands[1:]
	}
	for c := hot; c <= sweep; c++ {
		for len(q.lists[c]) > 0 {
			r := &q.lists[c][0]
			waits := false
			q.each(Range{r.File, r.Off, min(r.Len, 1)}, func(_ unitRef, s *state) { waits = s.waits() })
			if waits {
				break
			}
			// Go to the next unit, or the next range.
			next := (r.Off/UnitBytes + 1) * UnitBytes
			if r.File < 0 || r.File >= len(q.units) || next >= r.End() {
				q.lists[c] = q.lists[c][1:]
				continue
			}
			r.Off, r.Len = next, r.End()-next
		}
	}
}

// next waits for a run to fetch. Worker -1 takes demands only; the others take
// all classes as long as their number is below active.
func (q *Queue) next(worker int) (run, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if q.closed {
			return run{}, false
		}
		q.skip()
		if r, ok := q.rested(worker); ok {
			if len(q.demands) > 0 {
				q.wakeAny.Signal() // whoever was woken for one of them may be this worker
			}
			return r, true
		}
		switch {
		case len(q.demands) > 0:
			return q.claim(demand, q.demands[0], q.opts.DemandBytes), true
		case worker < 0:
			q.expressIdle = true
			q.wakeExpress.Wait()
			q.expressIdle = false
		case worker >= q.active || len(q.lists[hot])+len(q.lists[sweep]) == 0 && !q.blockReady(),
			len(q.resting) >= mostResting:
			q.wakeAny.Wait()
		case q.rate.due(time.Now()) > 0:
			// Nothing is claimed before it may be fetched: a demand for it
			// would have to wait too.
			q.rateTimer.Reset(q.rate.due(time.Now()))
			q.wakeAny.Wait()
		case q.blockReady():
			q.urgent = time.Now()
			if r, any := q.claimBlock(); any {
				return r, true
			}
		case len(q.lists[hot]) > 0:
			q.urgent = time.Now()
			return q.claimList(hot, q.opts.RunBytes), true
		default:
			limit, wait := q.hold(time.Now())
			if wait > 0 {
				q.rateTimer.Reset(wait)
				q.wakeAny.Wait()
				continue
			}
			return q.claimList(sweep, limit), true
		}
	}
}

// urgentTime is how long after a demand, or a run for the hot set, the next one
// is expected.
const urgentTime = 4 * time.Millisecond

// shortBytes is a run of the sweep beside demands.
const shortBytes = 256 << 10

// hold tells how large a run the sweep may take, or how long it is to wait. A thread that has just waited for a page
// will soon wait for the next one, and a processor that is busy with the sweep delays that: while there are demands the
// sweep uses all of them but one, in short runs. While others are Busy it uses a quarter of them, at least one.
func (q *Queue) hold(now time.Time) (limit int64, wait time.Duration) {
	wait = urgentTime - now.Sub(q.urgent)
	most := runtime.NumCPU()
	if q.opts.Busy != nil && q.opts.Busy() {
		wait, most = urgentTime, max(1, most/4)
	}
	switch {
	case wait <= 0 || q.opts.Steady:
		return q.opts.RunBytes, 0
	case q.sweeping < most:
		return min(shortBytes, q.opts.RunBytes), 0
	}
	return 0, wait
}

// firstBytes is how much of a demand's run goes first, from the demanded page on.
const firstBytes = 64 << 10

func (q *Queue) claimList(c class, limit int64) run {
	r := q.lists[c][0]
	return q.claim(c, unitRef{r.File, int(r.Off / UnitBytes)}, limit)
}

// begin accounts for a run. Preconditions: mu is held.
func (q *Queue) begin(r *run) {
	var bytes int64
	for _, p := range r.parts {
		bytes += p.Len
	}
	q.running++
	q.stats.Runs++
	q.rate.take(bytes, time.Now())
	switch r.class {
	case demand:
		q.stats.DemandBytes += bytes
		q.waited++
	case hot:
		q.stats.HotBytes += bytes
	case sweep:
		q.stats.SweepBytes += bytes
		q.sweeping++
	}
}

// takes reports whether a run of a class may take a unit. A demand takes what
// nobody has asked for yet: before the sweep that is everything, and touched
// next it would be a demand of its own. Preconditions: mu is held.
func (q *Queue) takes(c class, s state) bool {
	return s.waits() || c == demand && s == idle && q.fills
}

// claim takes a unit with what is stored together with it, and what follows and
// is wanted as well, for the hot set what is hot, until there are limit bytes.
// Preconditions: mu is held, the unit is wanted.
func (q *Queue) claim(c class, u unitRef, limit int64) run {
	units := q.units[u.file]
	most := int(q.opts.RunBytes / UnitBytes)
	lo, hi := q.together(u, most)
	if c == demand && q.records() {
		lo, hi, limit = u.unit, u.unit+1, q.window(u)
	}
	start, end := u.unit, u.unit+1
	for start > lo && end-start < most && units[start-1] != inFlight {
		start--
	}
	for {
		for end < hi && end-start < most && units[end] != inFlight {
			end++
		}
		if end < hi || end == len(units) || int64(end-start)*UnitBytes >= limit ||
			!q.takes(c, units[end]) || c == hot && units[end] != wantedHot {
			break
		}
		if c == demand && q.records() {
			hi = end + 1
		} else if _, hi = q.together(unitRef{u.file, end}, most); hi-start > most {
			break
		}
	}
	r := run{Range: q.span(u.file, start, end), class: c}
	for i := start; i < end; i++ {
		if !q.takes(c, units[i]) {
			continue
		}
		from := i
		for ; i < end && q.takes(c, units[i]); i++ {
			units[i] = inFlight
		}
		r.parts = append(r.parts, q.span(u.file, from, i))
	}
	if c == demand && q.records() {
		q.record(u, r)
	}
	if c == demand {
		r.first = q.span(u.file, u.unit, min(u.unit+firstBytes/UnitBytes, len(units)))
	}
	q.begin(&r)
	return r
}

// span returns the range of the units from start to end.
func (q *Queue) span(file, start, end int) Range {
	off := int64(start) * UnitBytes
	return Range{file, off, min(int64(end)*UnitBytes, q.opts.Files[file].Size()) - off}
}

// together returns the units, from lo to hi, that are stored together with u. It
// looks no further than most units to each side.
func (q *Queue) together(u unitRef, most int) (lo, hi int) {
	lo, hi = u.unit, u.unit+1
	h := q.heads[u.file]
	if h == nil {
		return lo, hi
	}
	head := func(i int) bool { return h[i/64]&(1<<(i%64)) != 0 }
	for lo > 0 && u.unit-lo < most && !head(lo) {
		lo--
	}
	for hi < len(q.units[u.file]) && hi-u.unit < most && !head(hi) {
		hi++
	}
	return lo, hi
}

// heads finds where in a file what is stored together begins.
func heads(f File) []uint64 {
	s, ok := f.(Spanner)
	if !ok {
		return nil
	}
	n := (f.Size() + UnitBytes - 1) / UnitBytes
	h := make([]uint64, (n+63)/64)
	mark := func(unit int64) {
		if unit < n {
			h[unit/64] |= 1 << (unit % 64)
		}
	}
	err := s.Spans(func(start, end int64) bool {
		mark(start / UnitBytes)
		mark((end + UnitBytes - 1) / UnitBytes)
		return true
	})
	if err != nil {
		// It will be found damaged where it is read.
		return nil
	}
	return h
}

// delivered ends a run, but for the ranges of it that are to be read again.
func (q *Queue) delivered(r run, zero, failed int64, again []Range) {
	var late []Range // what was demanded meanwhile
	q.mu.Lock()
	defer func() {
		q.mu.Unlock()
		for _, x := range late {
			q.opts.Sink.AlreadyDelivered(x)
		}
	}()
	laid := make(map[unitRef]bool)
	for _, p := range again {
		q.each(p, func(u unitRef, _ *state) { laid[u] = true })
	}
	for _, p := range r.parts {
		q.each(p, func(u unitRef, s *state) {
			if !laid[u] {
				*s = done
				q.readersDone(u, s)
				late = q.appendJoined(late, u)
			}
		})
	}
	q.stats.ZeroBytes += zero
	q.stats.FailedBytes += failed
	if len(again) > 0 {
		q.lay(r, again)
		return
	}
	q.running--
	switch r.class {
	case demand:
		q.waited--
		q.demanded = time.Now()
	case sweep:
		q.sweeping--
	}
	if !r.rest.since.IsZero() {
		q.wakeAny.Broadcast() // those who waited because so much rested
	}
	q.wakeDrain.Broadcast()
}

// appendJoined appends a unit that was demanded while it was in flight. Preconditions: mu is held.
func (q *Queue) appendJoined(late []Range, u unitRef) []Range {
	if !q.joined[u] {
		return late
	}
	delete(q.joined, u)
	off := int64(u.unit) * UnitBytes
	if k := len(late) - 1; k >= 0 && late[k].File == u.file && late[k].End() == off {
		late[k].Len += UnitBytes
		return late
	}
	return append(late, Range{u.file, off, UnitBytes})
}

// hotWindow is how much of the profile is put in order: more would bring what
// was touched first too late.
const hotWindow = 128 << 20

// hotSet returns the hot set as it is fetched. A touch stands for all that its
// demand brought, since what that spared the process was not recorded; what is
// touched at about the same time is put in the order of the file.
func (q *Queue) hotSet() []Range {
	var out []Range
	var window int64
	from := 0
	flush := func() {
		w := out[from:]
		slices.SortFunc(w, func(a, b Range) int {
			if a.File != b.File {
				return a.File - b.File
			}
			return int(min(max(a.Off-b.Off, -1), 1))
		})
		n := from
		for _, r := range w {
			if n > from && out[n-1].File == r.File && out[n-1].End() >= r.Off {
				out[n-1].Len = max(out[n-1].End(), r.End()) - out[n-1].Off
				continue
			}
			out[n] = r
			n++
		}
		out, from, window = out[:n], n, 0
	}
	for _, r := range q.opts.Hot {
		size := q.opts.Files[r.File].Size()
		if r.Off < 0 || r.Len <= 0 || r.Off >= size {
			continue
		}
		if q.heads[r.File] == nil {
			r.Len = min(max(r.Len, q.opts.DemandBytes), size-r.Off)
		} else {
			most := int(q.opts.RunBytes / UnitBytes)
			lo, _ := q.together(unitRef{r.File, int(r.Off / UnitBytes)}, most)
			_, hi := q.together(unitRef{r.File, int((min(r.End(), size) - 1) / UnitBytes)}, most)
			r = q.span(r.File, lo, hi)
		}
		out = append(out, r)
		if window += r.Len; window >= hotWindow {
			flush()
		}
	}
	flush()
	return out
}

// advise tells files of the hot set, from which the restore is to go on soon.
func (q *Queue) advise() {
	<-q.planned
	if q.opts.Packed != nil {
		q.opts.Packed.advise()
		return
	}
	for _, r := range q.opts.Hot {
		select {
		case <-q.stop:
			return
		default:
		}
		if a, ok := q.opts.Files[r.File].(Adviser); ok {
			a.Advise(r.Off, r.Len)
		}
	}
}

// locateSoon has files look up where they are stored, once, when something is
// asked for: in a restore criu then goes on by itself, and a processor idles.
// Preconditions: mu is held.
func (q *Queue) locateSoon() {
	if q.located || q.closed {
		return
	}
	q.located = true
	q.workers.Go(func() {
		for _, f := range q.opts.Files {
			if l, ok := f.(Locator); ok {
				l.Locate(0, f.Size(), q.stop)
			}
		}
	})
}
