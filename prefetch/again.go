package prefetch

import (
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index"
)

// A read may fail for what passes: there is no descriptor or no memory just now, the disk is full under what the store
// writes to read, or a disk does not answer once. Whoever needs the bytes can wait, and a page that has failed has
// failed for good. So what could not be read rests, and is read again after a pause, for restTime. When nothing at all
// could be read for so long, in one way and in more than one place, the next runs that fail in that way do not wait as
// long again: they fail at once. One bad page alone tells nothing of others. What cannot be had from a bucket has been
// waited for where it is read (index.Options.DistantTimeout).
const (
	restTime     = 30 * time.Second
	restPause    = 10 * time.Millisecond
	restPauseMax = 500 * time.Millisecond
	// mostResting bounds what rests before hot set and sweep go on: there is no use in finding more that fails.
	mostResting = 16
)

// lacks are errors of a system that has no more of something, or was interrupted.
var lacks = []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN, unix.EINTR}

// IsLack reports whether a call failed for want of what may be there soon. That tells nothing of what it was asked.
func IsLack(err error) bool {
	return slices.ContainsFunc(lacks, func(e unix.Errno) bool { return errors.Is(err, e) })
}

// MayPass reports whether a read that failed may be right later. The number of an error counts for more than its class:
// what a disk could not read may have been called damaged.
func MayPass(err error) bool {
	switch index.ClassOf(err) {
	case index.NoSpace:
		return true
	case index.Unreachable, index.Locked:
		return false
	}
	return IsLack(err) || errors.Is(err, unix.EIO) || errors.Is(err, unix.ENOSPC)
}

// rest is since when a run cannot be read, and how it is tried again.
type rest struct {
	since, due time.Time
	pause      time.Duration
}

// over reports whether a run has been tried for long enough.
func (r rest) over(limit time.Duration) bool { return !r.since.IsZero() && time.Since(r.since) > limit }

// outages are times in which nothing can be read, whatever is tried, by the number of the error.
type outages struct {
	mu sync.Mutex
	of map[unix.Errno]outage // none when the last read brought something
}

type outage struct {
	since, last time.Time // of failures
	first       Range     // that failed
	wide        bool      // others have failed since
}

// failed notes that the read of a range, begun then, has failed, and reports whether the outage has lasted for long
// enough. It is as old as what failed second: the first may be one bad page. When nothing was tried for so long it may
// have ended, and a new one begins.
func (o *outages) failed(err error, x Range, begun time.Time, limit time.Duration) (over bool) {
	var number unix.Errno // stays 0 for what has none
	errors.As(err, &number)
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	a, ok := o.of[number]
	if !ok || begun.Sub(a.last) > limit+restPauseMax {
		a = outage{since: now, first: x}
	}
	if !a.wide && (x.File != a.first.File || overlap(x, a.first).Len < x.Len) {
		a.since, a.wide = now, true
	}
	a.last = now
	if o.of == nil {
		o.of = make(map[unix.Errno]outage)
	}
	o.of[number] = a
	return a.wide && now.Sub(a.since) > limit
}

// end notes that something could be read.
func (o *outages) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.of)
}

// lay has the ranges of a run that could not be read rest. Their units stay in flight. Preconditions: mu is held.
func (q *Queue) lay(r run, ranges []Range) {
	now := time.Now()
	if r.rest.since.IsZero() {
		r.rest = rest{since: now, pause: restPause}
	}
	r.rest.due = now.Add(r.rest.pause)
	r.parts, r.packed = ranges, nil
	start, end := ranges[0].Off, ranges[0].End()
	for _, x := range ranges {
		start, end = min(start, x.Off), max(end, x.End())
	}
	r.Range = Range{r.File, start, end - start}
	q.resting = append(q.resting, r)
	if r.class == sweep {
		q.sweeping--
	}
	time.AfterFunc(r.rest.pause, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.wakeAny.Broadcast()
		q.wakeExpress.Broadcast()
	})
}

// hurry has a run that rests read at once for a unit that nobody has waited for yet: it may be there by now. Without
// that it would wait for the pause of another unit, and for all demands. Preconditions: mu is held.
func (q *Queue) hurry(u unitRef) {
	at := q.span(u.file, u.unit, u.unit+1)
	i := slices.IndexFunc(q.resting, func(r run) bool {
		return r.File == u.file && slices.ContainsFunc(r.parts, func(p Range) bool { return overlap(p, at).Len > 0 })
	})
	if i < 0 {
		return
	}
	r := &q.resting[i]
	switch {
	case r.class != demand:
		r.class = demand
		q.waited++
	case r.waitedFor(at):
		return // it has just been tried
	}
	r.first = q.span(u.file, u.unit, min(u.unit+firstBytes/UnitBytes, len(q.units[u.file])))
	r.rest.due = time.Now()
	q.wakeForDemand()
}

// rested takes a run that has rested: for all workers what somebody waits for, and for those of hot set and sweep what
// nobody waits for. Preconditions: mu is held, there is no demand.
func (q *Queue) rested(worker int) (r run, ok bool) {
	now := time.Now()
	others := worker >= 0 && worker < q.active
	i := slices.IndexFunc(q.resting, func(r run) bool {
		return !r.rest.due.After(now) && (r.class == demand || others)
	})
	if i < 0 {
		return run{}, false
	}
	r = q.resting[i]
	q.resting = slices.Delete(q.resting, i, i+1)
	r.rest.pause = min(2*r.rest.pause, restPauseMax)
	if r.class == sweep {
		q.sweeping++
	}
	return r, true
}
