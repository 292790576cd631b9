package kfdsim

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// engine is one SDMA engine serving the submissions of its DRM ring, in order.
type engine struct {
	gpu  *gpu
	ring int

	mu     sync.Mutex
	wake   *sync.Cond
	jobs   []*job
	closed bool
}

// job is one submission: indirect buffers to run, then a fence.
type job struct {
	ctx    *drmCtx
	access *access
	ibs    []ibRange
	deps   []*fence
	fence  *fence
	// userFence is where the sequence number goes when the job is done.
	userFence *bo
	userOff   uint64
	release   func()
}

type ibRange struct{ va, n uint64 }

// fence is signalled when done is closed; err, set before, is why the job
// failed.
type fence struct {
	seq  uint64
	done chan struct{}
	err  syscall.Errno
}

func newFence(seq uint64) *fence { return &fence{seq: seq, done: make(chan struct{})} }

func (f *fence) signalled() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

func newEngine(g *gpu, ring int) *engine {
	e := &engine{gpu: g, ring: ring}
	e.wake = sync.NewCond(&e.mu)
	return e
}

func (e *engine) push(j *job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.jobs = append(e.jobs, j)
	e.wake.Signal()
}

func (e *engine) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.wake.Signal()
}

func (e *engine) run() {
	for {
		e.mu.Lock()
		for len(e.jobs) == 0 && !e.closed {
			e.wake.Wait()
		}
		if len(e.jobs) == 0 {
			e.mu.Unlock()
			return
		}
		j := e.jobs[0]
		e.jobs = e.jobs[1:]
		e.mu.Unlock()
		e.execute(j)
	}
}

// execute runs a job and signals its fence. A job that faults hangs the ring
// on hardware until the driver resets it: the fence gets ETIME and the context
// is guilty.
func (e *engine) execute(j *job) {
	for _, d := range j.deps {
		<-d.done
	}
	s := e.gpu.sim
	err := s.injectedDMA(e.gpu)
	if err == nil {
		e.gpu.link.begin()
		err = e.runIBs(j)
		e.gpu.link.end()
	}
	if err != nil {
		j.fence.err = syscall.ETIME
		s.mu.Lock()
		j.ctx.guilty = true
		// The driver keeps memory that a job has listed until the job is done, also when its process ends.
		if !errors.Is(err, unix.ESRCH) {
			s.noteGPUError(e.gpu, j.ctx.pid, "sdma", err)
		}
		s.unlock()
	} else if j.userFence != nil {
		storeWord(j.userFence.mem, j.userOff, j.fence.seq)
	}
	j.release()
	close(j.fence.done)
}

func (e *engine) runIBs(j *job) error {
	j.access.pace = e.gpu.link.pace
	x := sdmaRun{access: j.access, version: e.gpu.model.SDMA}
	for _, ib := range j.ibs {
		buf := make([]byte, ib.n)
		if err := j.access.read(ib.va, buf); err != nil {
			return err
		}
		if err := x.run(buf); err != nil {
			if errors.Is(err, errBlocked) {
				return errors.New("poll of memory in a submission is not modelled")
			}
			return err
		}
	}
	return nil
}

// link is the bus between a GPU and the host: what its engines share. It paces
// them to rate and keeps account of how busy they are.
type link struct {
	rate float64 // bytes per second, 0 for no limit; mu

	mu        sync.Mutex
	free      time.Time // when what was moved so far has gone over the bus
	active    int       // jobs being carried out
	since     time.Time // active rose from zero
	busy      time.Duration
	bytes     uint64
	jobs      uint64
	first     time.Time
	last      time.Time
	onTheWire time.Duration // bytes over rate
	lookups   uint64        // see DMAStats
}

func (l *link) begin() {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.active == 0 {
		l.since = now
		if l.free.Before(now) {
			l.free = now
		}
	}
	l.active++
	l.jobs++
	if l.first.IsZero() {
		l.first = now
	}
}

func (l *link) end() {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.active--; l.active == 0 {
		l.busy += now.Sub(l.since)
	}
	l.last = now
}

const (
	// minSleep is the least the pacing sleeps: shorter sleeps overshoot.
	minSleep = 200 * time.Microsecond
	// maxLag is how far behind the clock the bus may fall, by sleeping too
	// long or copying too slowly, and still catch up above its rate.
	maxLag = 2 * time.Millisecond
)

// pace accounts n bytes and sleeps as long as the bus is ahead of the clock.
func (l *link) pace(n int) {
	now := time.Now()
	l.mu.Lock()
	l.bytes += uint64(n)
	if l.rate == 0 {
		l.mu.Unlock()
		return
	}
	if l.free.Before(now.Add(-maxLag)) {
		l.free = now.Add(-maxLag)
	}
	d := time.Duration(float64(n) / l.rate * 1e9)
	l.free = l.free.Add(d)
	l.onTheWire += d
	wait := l.free.Sub(now)
	l.mu.Unlock()
	if wait > minSleep {
		time.Sleep(wait)
	}
}

// DMAStats is what a GPU's SDMA engines did for submissions since the start or
// the last reset.
type DMAStats struct {
	GPU   uint32 `json:"gpu"`
	Bytes uint64 `json:"bytes"` // read or filled by packets
	Jobs  uint64 `json:"jobs"`
	// Busy is how long at least one submission was being carried out; Span
	// runs from the first submission's begin to the last one's end. Their
	// quotient is how well the engines were fed.
	Busy time.Duration `json:"busy_ns"`
	Span time.Duration `json:"span_ns"`
	// Wire is Bytes over the link's rate: what Busy comes to when the
	// machine that simulates is fast enough. 0 without a rate.
	Wire time.Duration `json:"wire_ns"`
	Rate float64       `json:"rate"` // bytes per second, 0 for no limit
	// Lookups is how many pages of userptr BOs the submissions have listed: the
	// driver looks each up at every submission.
	Lookups uint64 `json:"lookups"`
}

// looksUp counts the pages of a submission's userptr BOs.
func (l *link) looksUp(list map[*bo]bool) {
	var n uint64
	for b := range list {
		if b.kind == boUserptr {
			n += b.size / pageSize
		}
	}
	l.mu.Lock()
	l.lookups += n
	l.mu.Unlock()
}

func (l *link) stats(id uint32, reset bool) DMAStats {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	st := DMAStats{GPU: id, Bytes: l.bytes, Jobs: l.jobs, Busy: l.busy, Wire: l.onTheWire, Rate: l.rate,
		Lookups: l.lookups}
	last := l.last
	if l.active > 0 {
		st.Busy += now.Sub(l.since)
		last = now
	}
	if !l.first.IsZero() {
		st.Span = last.Sub(l.first)
	}
	if reset {
		l.bytes, l.jobs, l.busy, l.onTheWire, l.lookups = 0, 0, 0, 0, 0
		l.first, l.since = time.Time{}, now
		if l.active > 0 {
			l.first = now
		}
	}
	return st
}

// setRate changes the rate from now on.
func (l *link) setRate(rate float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate = rate
}
