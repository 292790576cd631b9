package prefetch

import (
	"bytes"
	"runtime"
	"sync/atomic"
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

// While others are busy a sweep leaves them half of the processors and one, demands are served, and it goes on
// afterwards, though nothing tells it to.
func TestSweepGivesWayToTheBusy(t *testing.T) {
	src := newSource(8*mib, 1)
	out := newSink(src.Size())
	var busy atomic.Bool
	busy.Store(true)
	q := newQueue(t, Options{Files: []File{src}, Sink: out, RunBytes: mib, Memory: 8 * mib, Busy: busy.Load})
	few := (runtime.NumCPU() - 1) / 2
	q.mu.Lock()
	q.sweeping += few
	_, wait := q.hold(time.Now())
	q.sweeping -= few
	q.mu.Unlock()
	if wait <= 0 {
		t.Errorf("%d runs of the sweep on %d processors, and another one begins", few, runtime.NumCPU())
	}
	q.Sweep([]Range{{0, 0, src.Size()}})
	q.Demand(Range{0, 7 * mib, PageSize}, false)
	for late := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		out.mu.Lock()
		there := bytes.Equal(out.got[7*mib:][:PageSize], src.data[7*mib:][:PageSize])
		out.mu.Unlock()
		if there {
			break
		}
		if time.Now().After(late) {
			t.Fatal("a demand waits for those who are busy")
		}
	}
	if n := q.Stats().SweepBytes; few == 0 && n > 0 {
		t.Errorf("%d bytes swept beside them", n)
	}
	busy.Store(false)
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
