package prefetch

import (
	"io"
	"sync"
	"time"
)

// work is the life of a worker.
func (q *Queue) work(id int) {
	defer q.workers.Done()
	for {
		r, ok := q.next(id)
		if !ok {
			return
		}
		if !q.rate.wait(r.Len, r.class != demand, q.stop) {
			// Closing: nobody will ask for the run again.
			q.delivered(r, 0, 0)
			return
		}
		zero, failed := q.fetch(r.Range)
		q.delivered(r, zero, failed)
	}
}

// fetch reads a range and hands it to the sink.
func (q *Queue) fetch(r Range) (zero, failed int64) {
	f := q.opts.Files[r.File]
	var buf []byte
	defer func() {
		if buf != nil {
			q.opts.Buffers.Put(buf)
		}
	}()
	for off := r.Off; off < r.End(); {
		start, stop, err := f.Data(off, r.End())
		if err != nil || start < off || stop > r.End() || start < r.End() && stop <= start {
			// Without knowledge of zero runs everything is read.
			start, stop = off, r.End()
		}
		if start > off {
			q.opts.Sink.Zero(Range{r.File, off, start - off})
			zero += start - off
		}
		if start < stop {
			if buf == nil {
				buf = q.opts.Buffers.Get()
			}
			failed += q.read(f, Range{r.File, start, stop - start}, buf)
		}
		off = max(start, stop)
	}
	return zero, failed
}

// read reads a range that holds data. When that fails it tries ever smaller
// parts, so that only the pages that cannot be read fail.
func (q *Queue) read(f File, r Range, buf []byte) (failed int64) {
	n, err := f.ReadAt(buf[:r.Len], r.Off)
	if int64(n) == r.Len {
		q.opts.Sink.Fill(r, buf[:r.Len])
		return 0
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	part := int64(PageSize)
	if r.Len > UnitBytes {
		part = UnitBytes
	}
	if r.Len <= part {
		q.opts.Logger.Error("cannot read page", "file", r.File, "offset", r.Off, "bytes", r.Len, "err", err)
		q.opts.Sink.Fail(r, err)
		return r.Len
	}
	for off := r.Off; off < r.End(); off += part {
		failed += q.read(f, Range{r.File, off, min(part, r.End()-off)}, buf)
	}
	return failed
}

// limiter is a token bucket that may be overdrawn: a run waits until the debt
// of those before it is paid.
type limiter struct {
	perSecond int64
	mu        sync.Mutex
	free      time.Time // when the debt is paid
}

// wait takes n bytes and, when hold is set, sleeps off the debt there was. It
// returns false when stop is closed meanwhile.
func (l *limiter) wait(n int64, hold bool, stop <-chan struct{}) bool {
	if l.perSecond == 0 {
		return true
	}
	l.mu.Lock()
	now := time.Now()
	if l.free.Before(now) {
		l.free = now
	}
	due := l.free.Sub(now)
	l.free = l.free.Add(time.Duration(float64(n) / float64(l.perSecond) * float64(time.Second)))
	l.mu.Unlock()
	if !hold || due <= 0 {
		return true
	}
	t := time.NewTimer(due)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-stop:
		return false
	}
}
