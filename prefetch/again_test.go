package prefetch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index"
)

// failing is a source that gives an error for a page, or for all of them, until it is mended.
type failing struct {
	*source
	err    error
	page   int64 // -1: each
	mended atomic.Bool
	failed atomic.Int64
}

func (f *failing) ReadAt(p []byte, off int64) (int, error) {
	here := f.page < 0 || off <= f.page*PageSize && f.page*PageSize < off+int64(len(p))
	if here && !f.mended.Load() {
		f.failed.Add(1)
		return 0, f.err
	}
	return f.source.ReadAt(p, off)
}

// What cannot be read for a moment is there in the end, for a process and for a reader, and nothing has failed.
func TestErrorsThatPass(t *testing.T) {
	const size = 8 * mib
	for _, err := range []error{
		&index.Error{Op: "read", Err: fmt.Errorf("open a pack: %w", syscall.EMFILE)},
		&index.Error{Class: index.Corrupt, Err: syscall.ENOMEM},
		&index.Error{Class: index.Corrupt, Err: syscall.EIO},
		&index.Error{Class: index.NoSpace},
	} {
		src := &failing{source: newSource(size, 1), err: err, page: -1}
		out := newSink(size)
		q := newQueue(t, Options{Files: []File{src}, Sink: out})
		q.Sweep([]Range{{0, 0, size}})
		q.Demand(Range{0, 5 * mib, PageSize}, false)
		read := make(chan error, 1)
		buf := make([]byte, PageSize)
		go func() {
			_, err := q.Read(t.Context(), 0, 6*mib, buf)
			read <- err
		}()
		eventually(t, "reads fail", func() bool { return src.failed.Load() > 20 })
		src.mended.Store(true)
		drain(t, q)
		if rerr := <-read; rerr != nil || !bytes.Equal(buf, src.data[6*mib:][:PageSize]) {
			t.Errorf("%v: a reader got other bytes, or %v", err, rerr)
		}
		if n := q.Stats().FailedBytes; n != 0 || !bytes.Equal(out.got, src.data) {
			t.Errorf("%v: %d bytes have failed; the others are right: %v", err, n, bytes.Equal(out.got, src.data))
		}
		q.Close()
	}
}

// A page that a disk does not give fails when it has been tried for long enough, and holds up nothing else.
func TestErrorsThatLast(t *testing.T) {
	const size, bad = 4 * mib, 300
	src := &failing{source: newSource(size, 1), err: syscall.EIO, page: bad}
	out := newSink(size)
	told := failures{sink: out}
	q := newQueue(t, Options{Files: []File{src}, Sink: &told, rest: 300 * time.Millisecond})
	begun := time.Now()
	q.Sweep([]Range{{0, 0, size}})
	eventually(t, "all other pages are there", func() bool {
		out.mu.Lock()
		defer out.mu.Unlock()
		for page, n := range out.times {
			if (n == 0) != (page == bad) {
				return false
			}
		}
		return true
	})
	if n := told.n.Load(); n > 0 && time.Since(begun) < 300*time.Millisecond {
		t.Errorf("%d bytes failed after %v", n, time.Since(begun))
	}
	drain(t, q)
	if n := told.n.Load(); n != PageSize || q.Stats().FailedBytes != PageSize {
		t.Errorf("%d bytes failed, by the count %d", n, q.Stats().FailedBytes)
	}
	if d := time.Since(begun); d < 300*time.Millisecond {
		t.Errorf("given up after %v", d)
	}
}

// A disk that gives nothing any more is waited for once, not once for each run. What lies on another one comes then.
func TestOutage(t *testing.T) {
	const size, rest = 12 * mib, time.Second
	gone := &failing{source: newSource(size, 1), err: syscall.EIO, page: -1}
	well := newSource(size, 2)
	told := failures{sink: newSink(size)}
	q := newQueue(t, Options{Files: []File{gone, well}, Sink: &told, rest: rest, RunBytes: 128 << 10})
	begun := time.Now()
	q.Sweep([]Range{{0, 0, size}, {1, 0, size}})
	drain(t, q)
	if n := told.n.Load(); n != size {
		t.Errorf("%d bytes have failed", n)
	}
	if d := time.Since(begun); d < rest || d > 20*rest {
		t.Errorf("it took %v", d)
	}
	// A success ends it: what passes is waited for again.
	q.Demand(Range{1, 0, PageSize}, true)
	drain(t, q)
	late := &failing{source: newSource(size, 3), err: syscall.EIO, page: -1}
	q.opts.Files[0] = late
	q.Refetch([]Range{{0, 0, mib}})
	eventually(t, "reads fail", func() bool { return late.failed.Load() > 20 })
	late.mended.Store(true)
	drain(t, q)
	if n := told.n.Load(); n != size {
		t.Errorf("%d bytes have failed, of a disk that is there again", n-size)
	}
}

// Who comes while nothing can be read for long does not wait as long again.
func TestDemandInOutage(t *testing.T) {
	const size, rest = 4 * mib, time.Second
	src := &failing{source: newSource(size, 1), err: syscall.EIO, page: -1}
	told := failures{sink: newSink(size)}
	q := newQueue(t, Options{Files: []File{src}, Sink: &told, rest: rest})
	for page := range int64(4) {
		begun := time.Now()
		q.Demand(Range{0, page * mib, PageSize}, false)
		drain(t, q)
		if d := time.Since(begun); (d < rest) != (page > 0) {
			t.Errorf("demand %d failed after %v", page, d)
		}
	}
}

// failures counts the bytes that failed, whatever the error.
type failures struct {
	*sink
	n atomic.Int64
}

func (f *failures) Fail(r Range, err error) { f.n.Add(r.Len) }

// What is damaged, or was waited for where it was read, fails at once.
func TestErrorsThatStay(t *testing.T) {
	for _, err := range []error{
		errors.New("wrong checksum"), io.ErrUnexpectedEOF,
		&index.Error{Class: index.Corrupt}, &index.Error{Class: index.Locked},
		&index.Error{Class: index.Unreachable, Err: syscall.EMFILE},
	} {
		src := &failing{source: newSource(mib, 1), err: err, page: 7}
		told := failures{sink: newSink(mib)}
		q := newQueue(t, Options{Files: []File{src}, Sink: &told, rest: time.Hour})
		q.Sweep([]Range{{0, 0, mib}})
		drain(t, q)
		if n := told.n.Load(); n != PageSize {
			t.Errorf("%v: %d bytes failed", err, n)
		}
		q.Close()
	}
}
