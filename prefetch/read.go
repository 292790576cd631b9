package prefetch

import (
	"context"
	"io"
)

// reader is a Read that waits for units.
type reader struct {
	r    Range
	p    []byte
	left map[unitRef]int64 // bytes still to come of each unit
	err  error
	done chan struct{}
}

// Read fills p from a file, like a demand. What is in flight is joined; what
// has been delivered to the sink before is fetched again. It returns fewer
// bytes only at the end of the file, with io.EOF.
func (q *Queue) Read(ctx context.Context, file int, off int64, p []byte) (int, error) {
	size := q.opts.Files[file].Size()
	n := min(int64(len(p)), size-off)
	if n <= 0 {
		return 0, io.EOF
	}
	rd := &reader{r: Range{file, off, n}, p: p[:n], left: make(map[unitRef]int64), done: make(chan struct{})}
	if q.opts.Recorder != nil {
		q.opts.Recorder.Touch(q.opts.Names[file], off, n)
	}
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return 0, io.ErrClosedPipe
	}
	joined := false
	q.each(rd.r, func(u unitRef, s *state) {
		rd.left[u] = overlap(rd.r, unitRange(u)).Len
		q.readers[u] = append(q.readers[u], rd)
		joined = q.makeUrgent(u, s) || joined
	})
	q.count(true, joined)
	q.mu.Unlock()
	select {
	case <-rd.done:
	case <-q.stop:
		q.forget(rd, io.ErrClosedPipe)
	case <-ctx.Done():
		q.forget(rd, ctx.Err())
	}
	if rd.err != nil {
		return 0, rd.err
	}
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

func unitRange(u unitRef) Range { return Range{u.file, int64(u.unit) * UnitBytes, UnitBytes} }

func overlap(a, b Range) Range {
	off := max(a.Off, b.Off)
	return Range{a.File, off, max(0, min(a.End(), b.End())-off)}
}

// forget takes a reader back unless it is done.
func (q *Queue) forget(rd *reader, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-rd.done:
		return
	default:
	}
	rd.err = err
	for u := range rd.left {
		q.unregister(u, rd)
	}
}

// unregister removes a reader of a unit. Preconditions: mu is held.
func (q *Queue) unregister(u unitRef, rd *reader) {
	var rest []*reader
	for _, x := range q.readers[u] {
		if x != rd {
			rest = append(rest, x)
		}
	}
	if q.readers[u] = rest; len(rest) == 0 {
		delete(q.readers, u)
	}
}

// pass gives readers what has been fetched: data, zeros when it is nil, or an
// error.
func (q *Queue) pass(r Range, data []byte, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.readers) == 0 {
		return
	}
	q.each(r, func(u unitRef, _ *state) {
		for _, rd := range q.readers[u] {
			o := overlap(overlap(rd.r, unitRange(u)), r)
			if o.Len == 0 {
				continue
			}
			to := rd.p[o.Off-rd.r.Off:][:o.Len]
			switch {
			case err != nil:
				rd.err = err
			case data == nil:
				clear(to)
			default:
				copy(to, data[o.Off-r.Off:])
			}
			rd.left[u] -= o.Len
		}
	})
}

// readersDone ends the wait for a unit. A reader that joined after its part had
// been passed asks for the unit again. Preconditions: mu is held.
func (q *Queue) readersDone(u unitRef, s *state) {
	for _, rd := range q.readers[u] {
		if rd.left[u] > 0 {
			q.makeUrgent(u, s)
			continue
		}
		q.unregister(u, rd)
		delete(rd.left, u)
		if len(rd.left) == 0 {
			close(rd.done)
		}
	}
}
