package prefetch

import (
	"testing"
	"time"
)

// A demand for a page of a run that rests has it read at once, and a demand for another of its pages once more. A
// second demand for the same page waits for the run's time.
func TestDemandInRested(t *testing.T) {
	const size = 2 * mib
	src := newGated(t, size)
	src.lacks[0] = 1 << 30
	q := newQueue(t, Options{Files: []File{src}, Sink: newSink(size), Workers: 1})
	// restsLong waits until the run rests, and has it rest for long.
	restsLong := func() (reads int) {
		eventually(t, "the run rests", func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			if len(q.resting) == 0 {
				return false
			}
			q.resting[0].rest.due = time.Now().Add(time.Hour)
			return true
		})
		return src.count(0)
	}
	q.Sweep([]Range{{0, 0, size}})
	reads := restsLong()
	q.Demand(Range{0, mib, PageSize}, false)
	eventually(t, "it is read for a demand", func() bool { return src.count(0) > reads })
	reads = restsLong()
	q.Demand(Range{0, mib, PageSize}, false)
	time.Sleep(20 * time.Millisecond)
	if n := src.count(0); n != reads {
		t.Errorf("read %d times for one page", n-reads)
	}
	src.mu.Lock()
	src.lacks[0] = 0
	src.mu.Unlock()
	q.Demand(Range{0, 0, PageSize}, false)
	eventually(t, "it is read for another demand", func() bool { return src.count(0) > reads })
	drain(t, q)
	if q.Quiet() == 0 || q.waited != 0 || q.sweeping != 0 {
		t.Errorf("%d runs for demands and %d of the sweep are left", q.waited, q.sweeping)
	}
}

// What nobody has tried yet goes before what could not be read, also where somebody waits for both: to try again may
// take a disk seconds.
func TestDemandBeforeRestedDemand(t *testing.T) {
	const size = 12 * mib
	src := newGated(t, size, 2, 5)
	src.lacks[0] = 1 << 30
	q := newQueue(t, Options{Files: []File{src}, Sink: newSink(size), Workers: 1})
	q.Sweep([]Range{{0, 10 * mib, PageSize}})
	eventually(t, "the other worker is busy", func() bool { return src.count(5) > 0 })
	q.Demand(Range{0, 0, PageSize}, false)
	eventually(t, "a demand cannot be read", func() bool { return src.count(0) > 1 })
	q.Demand(Range{0, 4 * mib, PageSize}, false)
	eventually(t, "the worker for demands is busy", func() bool { return src.count(2) > 0 })
	q.Demand(Range{0, 6 * mib, PageSize}, false)
	eventually(t, "what rests is due", func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.resting) == 1 && q.resting[0].rest.due.Before(time.Now())
	})
	before := len(src.runs())
	close(src.gates[2])
	eventually(t, "the third demand is read", func() bool { return src.count(3) > 0 })
	for _, k := range src.runs()[before:] {
		if k == 0 {
			t.Errorf("runs were read in the order %v", src.runs())
		}
		if k == 3 {
			break
		}
	}
	src.mu.Lock()
	src.lacks[0] = 0
	src.mu.Unlock()
	close(src.gates[5])
	drain(t, q)
}
