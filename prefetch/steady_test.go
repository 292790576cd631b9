package prefetch

import (
	"bytes"
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
