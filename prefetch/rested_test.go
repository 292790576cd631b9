package prefetch

import (
	"context"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// gated is a source whose reads can be held, and fail before.
type gated struct {
	*source
	gates map[int64]chan struct{} // by the run of 2 MiB that a read begins in
	lacks map[int64]int           // how many reads fail first, for want of descriptors
	ctx   context.Context         // opens the gates: a test that has failed waits for the reads

	mu    sync.Mutex
	begun []int64 // the runs that were read, as they began
}

func newGated(t *testing.T, size int64, runs ...int64) *gated {
	f := &gated{source: newSource(size, 1), gates: make(map[int64]chan struct{}), lacks: make(map[int64]int),
		ctx: t.Context()}
	for _, k := range runs {
		f.gates[k] = make(chan struct{})
	}
	return f
}

func (f *gated) ReadAt(p []byte, off int64) (int, error) {
	k := off / (2 * mib)
	f.mu.Lock()
	f.begun = append(f.begun, k)
	f.lacks[k]--
	lacks := f.lacks[k] >= 0
	f.mu.Unlock()
	if lacks {
		return 0, syscall.EMFILE
	}
	if g := f.gates[k]; g != nil {
		select {
		case <-g:
		case <-f.ctx.Done():
		}
	}
	return f.source.ReadAt(p, off)
}

// count returns how often the read of a run has begun.
func (f *gated) count(k int64) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range f.begun {
		if x == k {
			n++
		}
	}
	return n
}

func (f *gated) runs() []int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.begun)
}

func idleExpress(q *Queue) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.expressIdle
}

// The worker for demands reads again what somebody waits for, and another demand comes: an idle worker takes it.
func TestDemandBesideRested(t *testing.T) {
	const size = 12 * mib
	src := newGated(t, size, 0, 5)
	src.lacks[0] = 2 // a demand is read in two parts
	q := newQueue(t, Options{Files: []File{src}, Sink: newSink(size), Workers: 1})
	q.Sweep([]Range{{0, 10 * mib, PageSize}})
	eventually(t, "the other worker is busy", func() bool { return src.count(5) > 0 })
	eventually(t, "the worker for demands waits", func() bool { return idleExpress(q) })
	q.Demand(Range{0, 0, PageSize}, false)
	eventually(t, "the demand is read again", func() bool { return src.count(0) == 3 })
	close(src.gates[5])
	time.Sleep(50 * time.Millisecond) // the other worker goes to sleep
	q.Demand(Range{0, 6 * mib, PageSize}, false)
	for late := time.Now().Add(5 * time.Second); src.count(3) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Error("the demand waits beside an idle worker")
			break
		}
	}
	close(src.gates[0])
	drain(t, q)
}

// What nobody waits for is read again after what somebody waits for.
func TestDemandBeforeRested(t *testing.T) {
	const size = 12 * mib
	src := newGated(t, size, 1, 2)
	src.lacks[0] = 1 << 30
	q := newQueue(t, Options{Files: []File{src}, Sink: newSink(size), Workers: 1, Steady: true})
	// The other worker would take the demand, too: it is busy before.
	q.Sweep([]Range{{0, 0, 4 * mib}})
	eventually(t, "the other worker is busy", func() bool { return src.count(1) > 0 })
	q.Demand(Range{0, 4 * mib, PageSize}, false)
	eventually(t, "the worker for demands is busy", func() bool { return src.count(2) > 0 })
	q.Demand(Range{0, 6 * mib, PageSize}, false)
	eventually(t, "what rests is due", func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.resting) == 1 && q.resting[0].rest.due.Before(time.Now())
	})
	src.mu.Lock()
	src.lacks[0] = 0
	before := len(src.begun)
	src.mu.Unlock()
	close(src.gates[1])
	eventually(t, "another run is read", func() bool { return len(src.runs()) > before })
	if runs := src.runs(); runs[before] != 3 {
		t.Errorf("runs were read in the order %v", runs)
	}
	close(src.gates[2])
	drain(t, q)
}
