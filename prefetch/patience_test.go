package prefetch

import (
	"sync"
	"syscall"
	"testing"
	"time"
)

// sick is a source with an error for some pages, a number of times.
type sick struct {
	*source
	mu    sync.Mutex
	err   map[int64]error
	times map[int64]int
}

func (f *sick) ReadAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for page, err := range f.err {
		if off <= page*PageSize && page*PageSize < off+int64(len(p)) && f.times[page] > 0 {
			f.times[page]--
			return 0, err
		}
	}
	return f.source.ReadAt(p, off)
}

// A page that a disk does not give does not use up the time that others may take, whether they fail in the same way or
// in another.
func TestPatienceOfOthers(t *testing.T) {
	const size, bad, other = 4 * mib, 100, 700
	for _, err := range []error{syscall.EIO, syscall.EMFILE} {
		src := &sick{source: newSource(size, 1), err: map[int64]error{bad: syscall.EIO, other: err},
			times: map[int64]int{bad: 1 << 30, other: 2}}
		told := failures{sink: newSink(size)}
		q := newQueue(t, Options{Files: []File{src}, Sink: &told, rest: time.Second})
		q.Demand(Range{0, bad * PageSize, PageSize}, false)
		drain(t, q)
		if n := told.n.Load(); n != PageSize {
			t.Fatalf("%d bytes failed", n)
		}
		q.Demand(Range{0, other * PageSize, PageSize}, false)
		drain(t, q)
		if n := told.n.Load(); n != PageSize {
			t.Errorf("%v: a page that came a little later has failed with the bad one", err)
		}
		q.Close()
	}
}

// A disk that gives nothing is told from a bad page by the second page: what comes after that does not wait as long.
func TestDeadDiskByPages(t *testing.T) {
	const size, rest = mib, time.Second
	src := &failing{source: newSource(size, 1), err: syscall.EIO, page: -1}
	told := failures{sink: newSink(size)}
	q := newQueue(t, Options{Files: []File{src}, Sink: &told, rest: rest, DemandBytes: PageSize})
	for page := range int64(5) {
		before := src.failed.Load()
		q.Demand(Range{0, page * PageSize, PageSize}, false)
		drain(t, q)
		if n := src.failed.Load() - before; (n == 1) != (page > 1) {
			t.Errorf("demand %d failed after %d reads", page, n)
		}
	}
}

// Reads that a disk takes minutes to fail are one outage. When nothing was tried for so long it may be over.
func TestSlowOutage(t *testing.T) {
	const limit, slow = 30 * time.Second, 10 * time.Minute
	for begun, want := range map[time.Duration]bool{0: false, -slow - time.Second: true} {
		now := time.Now()
		o := outages{of: map[syscall.Errno]outage{
			syscall.EIO: {since: now.Add(-2 * slow), last: now.Add(-slow), first: Range{0, 0, PageSize}, wide: true},
		}}
		if over := o.failed(syscall.EIO, Range{0, mib, PageSize}, now.Add(begun), limit); over != want {
			t.Errorf("a read that began %v before: over: %v", -begun, over)
		}
	}
}
