package feed

import (
	"context"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/prefetch"
)

// A first restore sweeps when nobody has waited for memory for sweepQuiet, not before sweepEarliest, when the
// processes had time to start, and at the latest after sweepLatest. A process that goes through a hot set of 200 MB
// faults every 0.1 to 0.5 ms, but processors that others use keep it from that for some 10 ms, and CRIU from letting it
// run for 100.
const (
	sweepQuiet    = 100 * time.Millisecond
	sweepEarliest = 200 * time.Millisecond
	sweepLatest   = 30 * time.Second
)

// delayedSweep passes a sweep on when faults have become rare.
type delayedSweep struct {
	*prefetch.Queue
	mu   sync.Mutex
	held chan struct{} // closed when the sweep has been passed on; nil before there was one
	stop chan struct{}
	wg   sync.WaitGroup
}

func newDelayedSweep(q *prefetch.Queue) *delayedSweep {
	return &delayedSweep{Queue: q, stop: make(chan struct{})}
}

func (p *delayedSweep) close() {
	close(p.stop)
	p.wg.Wait()
}

// Sweep returns at once; the first one waits in the background.
func (p *delayedSweep) Sweep(ranges []prefetch.Range) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before, passed := p.held, make(chan struct{})
	p.held = passed
	begin := time.Now()
	p.wg.Go(func() {
		defer close(passed)
		if before != nil {
			<-before // large sweeps come in pieces
		} else {
			p.wait(begin)
		}
		p.Queue.Sweep(ranges)
	})
}

func (p *delayedSweep) wait(begin time.Time) {
	t := time.NewTicker(sweepQuiet / 4)
	defer t.Stop()
	for {
		if time.Since(begin) >= sweepLatest || p.Quiet() >= sweepQuiet && time.Since(begin) >= sweepEarliest {
			return
		}
		select {
		case <-t.C:
		case <-p.stop:
			return
		}
	}
}

// Drain waits for the sweep to be passed on, and then for what it asked for.
func (p *delayedSweep) Drain(ctx context.Context) error {
	p.mu.Lock()
	held := p.held
	p.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return p.Queue.Drain(ctx)
}
