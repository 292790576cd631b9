package prefetch

import (
	"io"
	"time"
)

// work is the life of a worker.
func (q *Queue) work(id int) {
	<-q.planned
	for {
		r, ok := q.next(id)
		if !ok {
			return
		}
		if r.packed != nil {
			q.fetchPacked(r)
			continue
		}
		zero, failed, again := q.fetch(r)
		q.delivered(r, zero, failed, again)
	}
}

// stretch is a range of a run that is zero, or has to be read.
type stretch struct {
	Range
	zero bool
}

// fetch reads a run and hands its parts to the sink: what somebody waits for by
// itself, the rest at once. Every byte has its place in the buffer, so a sink may
// go on using what it was given until the buffer is put back. It returns what is to be read again later.
func (q *Queue) fetch(r run) (zero, failed int64, again []Range) {
	f := q.opts.Files[r.File]
	all := stretches(f, r.Range)
	var buf []byte
	defer func() {
		if buf != nil {
			q.opts.Buffers.Put(buf)
		}
	}()
	// What is stored together is read at once, with the zeros between.
	read := false
	if first, last, any := bounds(all); any {
		buf = q.opts.Buffers.Get()
		if q.heads[r.File] != nil {
			n, _ := f.ReadAt(buf[first-r.Off:last-r.Off], first)
			if read = int64(n) == last-first; read {
				q.outages.end()
			}
		}
	}
	var parts []Part
	for _, part := range r.order() {
		for _, s := range all {
			o := overlap(s.Range, part)
			switch {
			case o.Len == 0:
			case s.zero:
				parts = append(parts, Part{o, nil})
				zero += o.Len
			case read:
				parts = append(parts, Part{o, buf[o.Off-r.Off:][:o.Len]})
			default:
				failed += q.read(f, o, buf[o.Off-r.Off:], &r, &again)
			}
		}
		if r.waitedFor(part) {
			q.give(parts)
			parts = parts[:0]
		}
	}
	q.give(parts)
	return zero, failed, again
}

// give hands what has been read to readers and the sink.
func (q *Queue) give(parts []Part) {
	if len(parts) == 0 {
		return
	}
	for _, p := range parts {
		q.pass(p.Range, p.Data, nil)
	}
	q.opts.Sink.Take(parts)
}

// waitedFor reports whether a part lies in what somebody waits for.
func (r *run) waitedFor(part Range) bool { return overlap(part, r.first).Len > 0 }

// order returns the parts of a run as they are delivered.
func (r *run) order() []Range {
	if r.first.Len == 0 {
		return r.parts
	}
	var out, rest []Range
	for _, p := range r.parts {
		o := overlap(p, r.first)
		if o.Len == 0 {
			rest = append(rest, p)
			continue
		}
		out = append(out, o)
		if o.End() < p.End() {
			out = append(out, Range{p.File, o.End(), p.End() - o.End()})
		}
		if p.Off < o.Off {
			out = append(out, Range{p.File, p.Off, o.Off - p.Off})
		}
	}
	return append(out, rest...)
}

// stretches takes a range of a file apart.
func stretches(f File, r Range) (out []stretch) {
	for off := r.Off; off < r.End(); {
		start, stop, err := f.Data(off, r.End())
		if err != nil || start < off || stop > r.End() || start < r.End() && stop <= start {
			// Without knowledge of zero runs everything is read.
			start, stop = off, r.End()
		}
		if start > off {
			out = append(out, stretch{Range{r.File, off, start - off}, true})
		}
		if start < stop {
			out = append(out, stretch{Range{r.File, start, stop - start}, false})
		}
		off = max(start, stop)
	}
	return out
}

// bounds returns the range from the first to the last byte that has to be read.
func bounds(all []stretch) (first, last int64, any bool) {
	for _, s := range all {
		if s.zero {
			continue
		}
		if !any {
			first, any = s.Off, true
		}
		last = s.End()
	}
	return first, last, any
}

// retryBytes is how a run that cannot be read is cut before it is cut into
// pages.
const retryBytes = 64 << 10

// read reads a range of a run that holds data. When that fails it tries ever smaller
// parts, so that only the pages that cannot be read fail. What may be read later
// goes to again.
func (q *Queue) read(f File, x Range, buf []byte, of *run, again *[]Range) (failed int64) {
	begun := time.Now()
	n, err := f.ReadAt(buf[:x.Len], x.Off)
	if int64(n) == x.Len {
		q.outages.end()
		q.give([]Part{{x, buf[:x.Len]}})
		return 0
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	part := int64(PageSize)
	if x.Len > retryBytes {
		part = retryBytes
	}
	if MayPass(err) && !q.outages.failed(err, x, begun, q.opts.rest) && !of.rest.over(q.opts.rest) &&
		(x.Len <= part || IsLack(err)) {
		if of.rest.since.IsZero() && len(*again) == 0 {
			q.opts.Logger.Warn("cannot read now, trying again", "file", q.opts.Names[x.File], "offset", x.Off,
				"bytes", x.Len, "for", q.opts.rest, "err", err)
		}
		if k := len(*again) - 1; k >= 0 && (*again)[k].End() == x.Off {
			(*again)[k].Len += x.Len
		} else {
			*again = append(*again, x)
		}
		return 0
	}
	if x.Len <= part {
		q.opts.Logger.Error("cannot read page", "file", q.opts.Names[x.File], "offset", x.Off, "bytes", x.Len, "err",
			err)
		q.pass(x, nil, err)
		q.opts.Sink.Fail(x, err)
		return x.Len
	}
	for off := x.Off; off < x.End(); off += part {
		failed += q.read(f, Range{x.File, off, min(part, x.End()-off)}, buf[off-x.Off:], of, again)
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
