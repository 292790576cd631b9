package prefetch

import (
	"bytes"
	"runtime"
	"testing"
	"time"
)

// A sweep that is steady goes on in long runs while somebody waits; others give way.
func TestSteadySweepDoesNotGiveWay(t *testing.T) {
	for _, steady := range []bool{true, false} {
		src := newSource(8*mib, 1)
		q := newQueue(t, Options{Files: []File{src}, RunBytes: 2 * mib, Memory: 8 * mib, Steady: steady})
		q.Demand(Range{0, 0, PageSize}, false)
		q.mu.Lock()
		limit, wait := q.hold(q.urgent)
		q.mu.Unlock()
		if whole := limit == 2*mib; whole != steady || wait != 0 {
			t.Errorf("steady %v: a run of %d bytes beside a demand, after %v", steady, limit, wait)
		}
	}
}

// While others are busy a sweep keeps to a quarter of the processors, one at least, in short runs, and goes on.
func TestSweepGivesWayToTheBusy(t *testing.T) {
	src := newSource(8*mib, 1)
	out := newSink(src.Size())
	busy := func() bool { return true }
	for _, steady := range []bool{false, true} {
		q := newQueue(t, Options{Files: []File{src}, RunBytes: mib, Memory: 8 * mib, Busy: busy, Steady: steady})
		few := max(1, runtime.NumCPU()/4)
		q.mu.Lock()
		q.sweeping += few - 1
		limit, first := q.hold(time.Now())
		q.sweeping++
		_, next := q.hold(time.Now())
		q.sweeping -= few
		q.mu.Unlock()
		if short := limit < mib; short == steady || first != 0 {
			t.Errorf("steady %v: run %d of %d has %d bytes, after %v", steady, few, few, limit, first)
		}
		if waits := next > 0; waits == steady {
			t.Errorf("steady %v: the run after %d begins after %v", steady, few, next)
		}
	}
	q := newQueue(t, Options{Files: []File{src}, Sink: out, RunBytes: mib, Memory: 8 * mib, Busy: busy})
	q.Sweep([]Range{{0, 0, src.Size()}})
	drain(t, q)
	if !bytes.Equal(out.got, src.data) {
		t.Error("contents differ")
	}
}

// slow is a file that takes its time to tell how it is stored.
type slow struct {
	*pieced
	told chan struct{}
}

func (s slow) Spans(yield func(start, end int64) bool) error {
	<-s.told
	return s.pieced.Spans(yield)
}

// Who makes a queue does not wait until it is known how the files are stored; who asks for their contents does.
func TestQueueIsMadeBeforeFilesTellHowTheyAreStored(t *testing.T) {
	src := slow{newPieced(4*mib, 2), make(chan struct{})}
	out := newSink(src.Size())
	q := newQueue(t, Options{Files: []File{src}, Sink: out, Hot: []Range{{0, mib, PageSize}}})
	q.Demand(Range{0, 3 * mib, PageSize}, false)
	time.Sleep(20 * time.Millisecond)
	if n := len(src.taken()); n > 0 {
		t.Errorf("%d reads before it is known what is read together", n)
	}
	close(src.told)
	q.Sweep([]Range{{0, 0, src.Size()}})
	drain(t, q)
	if !bytes.Equal(out.got, src.data) {
		t.Error("contents differ")
	}
}
