package prefetch

import (
	"io"
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
			q.pass(Range{r.File, off, start - off}, nil, nil)
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

// retryBytes is how a run that cannot be read is cut before it is cut into
// pages.
const retryBytes = 64 << 10

// read reads a range that holds data. When that fails it tries ever smaller
// parts, so that only the pages that cannot be read fail.
func (q *Queue) read(f File, r Range, buf []byte) (failed int64) {
	n, err := f.ReadAt(buf[:r.Len], r.Off)
	if int64(n) == r.Len {
		q.pass(r, buf[:r.Len], nil)
		q.opts.Sink.Fill(r, buf[:r.Len])
		return 0
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	part := int64(PageSize)
	if r.Len > retryBytes {
		part = retryBytes
	}
	if r.Len <= part {
		q.opts.Logger.Error("cannot read page", "file", q.opts.Names[r.File], "offset", r.Off, "bytes", r.Len, "err", err)
		q.pass(r, nil, err)
		q.opts.Sink.Fail(r, err)
		return r.Len
	}
	for off := r.Off; off < r.End(); off += part {
		failed += q.read(f, Range{r.File, off, min(part, r.End()-off)}, buf)
	}
	return failed
}

// limiter is a token bucket that may be overdrawn: what is held back waits
// until the debt of all that was fetched before is paid.
type limiter struct {
	perSecond int64
	paid      time.Time
}

// take debits n bytes.
func (l *limiter) take(n int64, now time.Time) {
	if l.perSecond == 0 {
		return
	}
	if l.paid.Before(now) {
		l.paid = now
	}
	l.paid = l.paid.Add(time.Duration(float64(n) / float64(l.perSecond) * float64(time.Second)))
}

// due returns how long to wait until the debt is paid.
func (l *limiter) due(now time.Time) time.Duration { return l.paid.Sub(now) }
