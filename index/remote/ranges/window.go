package ranges

import (
	"context"
	"sync"
	"time"
)

const (
	// firstWindow is how many ranges are under way at first: a link that gives much to each connection is full with
	// fewer, one that gives little is found out.
	firstWindow = 8
	leastWindow = 2
	mostWindow  = 24
	// measure is how long throughput is measured before the next step. It is as long as some requests take.
	measure = 150 * time.Millisecond
	// settled is how many measurements pass before the next larger window is tried.
	settled = 12
)

// Window bounds how many ranges are under way at once. NewWindow makes one. It is safe for concurrent use.
type Window struct {
	mu      sync.Mutex
	limit   int
	under   int
	waiting []chan struct{} // closed when its owner may go on; the first came first

	began time.Time // of the measurement
	bytes int64     // that came since
	full  bool      // somebody had to wait since: the window was what held them up
	best  float64   // bytes a second before the last step
	grew  bool      // the last step made it larger
	rest  int
	now   func() time.Time
}

// NewWindow gives a window that has not learnt anything.
func NewWindow() *Window { return &Window{limit: firstWindow, now: time.Now} }

// Begin waits until one more range may be asked for. end tells how many bytes of it came.
func (w *Window) Begin(ctx context.Context) (end func(bytes int64), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w.mu.Lock()
	if w.under < w.limit && len(w.waiting) == 0 {
		w.startLocked()
		w.mu.Unlock()
		return w.end, nil
	}
	w.full = true
	ready := make(chan struct{})
	w.waiting = append(w.waiting, ready)
	w.mu.Unlock()
	select {
	case <-ready:
		return w.end, nil
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, c := range w.waiting {
		if c == ready {
			w.waiting = append(w.waiting[:i], w.waiting[i+1:]...)
			return nil, ctx.Err()
		}
	}
	w.endLocked() // it was let in meanwhile
	return nil, ctx.Err()
}

func (w *Window) startLocked() {
	if w.under == 0 {
		w.began, w.bytes, w.full = w.now(), 0, false
	}
	w.under++
}

func (w *Window) end(bytes int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bytes += bytes
	w.step()
	w.endLocked()
}

// endLocked lets those in who wait.
func (w *Window) endLocked() {
	w.under--
	for w.under < w.limit && len(w.waiting) > 0 {
		close(w.waiting[0])
		w.waiting = w.waiting[1:]
		w.startLocked()
	}
}

// step looks whether the last step was a good one, and takes the next.
func (w *Window) step() {
	took := w.now().Sub(w.began)
	if took < measure {
		return
	}
	rate := float64(w.bytes) / took.Seconds()
	full := w.full || len(w.waiting) > 0
	w.began, w.bytes, w.full = w.now(), 0, false
	switch {
	case !full: // nothing is learnt from those who do not ask for more
		w.grew = false
	case w.grew && rate < w.best*1.05:
		w.limit = max(w.limit-2, leastWindow)
		w.grew, w.rest = false, settled
	case w.rest > 0:
		w.rest--
		w.best = rate
	default:
		w.best = rate
		w.grew = w.limit < mostWindow
		w.limit = min(w.limit+2, mostWindow)
	}
}

// Refused notes that the server has refused a range, as too much is asked of it.
func (w *Window) Refused() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limit = max(w.limit/2, leastWindow)
	w.grew, w.rest = false, settled
	w.began, w.bytes, w.full = w.now(), 0, false
}

// Limit gives how many ranges may be under way just now.
func (w *Window) Limit() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.limit
}
