package page

import (
	"slices"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/restores"
)

// Bounds of what is kept of restores.
const (
	sampleEvery = 25 * time.Millisecond // at first: when there is no room the interval doubles
	maxSamples  = 240
	maxEnded    = 12 // restores that are over
)

// Sample is how far a restore was at a moment.
type Sample struct {
	Ms       int64 `json:"ms"`       // after it was prepared
	Resident int64 `json:"resident"` // bytes of memory that are there
	Faults   int64 `json:"faults"`
	Images   int64 `json:"images"` // the others: see restore.Sources
	Demand   int64 `json:"demand"`
	Hot      int64 `json:"hot"`
	Sweep    int64 `json:"sweep"`
}

// Progress is a restore with its course so far.
type Progress struct {
	restores.Status
	Over    bool      `json:"over"`
	Ended   time.Time `json:"ended,omitzero"` // nothing was done for it any more
	Samples []Sample  `json:"samples"`
}

// Recorder records the course of restores, once it was started. Its goroutines, one for each restore in progress, end
// with Close.
type Recorder struct {
	wg   sync.WaitGroup
	quit chan struct{}

	mu      sync.Mutex
	started bool
	closed  bool
	ended   int64    // restores that are over, also those that were forgotten
	tracks  []*track // by the time they were begun
}

// track is the course of one restore. Recorder.mu guards all but what never changes.
type track struct {
	r       *restores.Restore
	every   time.Duration
	samples []Sample
	status  restores.Status
	over    bool
	ended   time.Time
}

// NewRecorder is one that writes nothing down yet.
func NewRecorder() *Recorder { return &Recorder{quit: make(chan struct{})} }

// Start begins, with the restores in progress.
func (c *Recorder) Start(list []*restores.Restore) {
	c.mu.Lock()
	c.started = true
	c.mu.Unlock()
	for _, r := range list {
		c.Began(r)
	}
}

// Began is told of a restore that has just been prepared. It does not wait.
func (c *Recorder) Began(r *restores.Restore) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.started || c.closed || slices.ContainsFunc(c.tracks, func(t *track) bool { return t.r == r }) {
		return
	}
	t := &track{r: r, every: sampleEvery}
	c.tracks = append(c.tracks, t)
	c.wg.Go(func() { c.follow(t) })
}

func (c *Recorder) follow(t *track) {
	r := t.r
	for next := time.NewTimer(0); ; {
		select {
		case <-r.Done():
			next.Stop()
			c.sample(t, r.Status(), true)
			return
		case <-c.quit:
			next.Stop()
			return
		case <-next.C:
			next.Reset(c.sample(t, r.Status(), false))
		}
	}
}

// sample enters how far a restore is, or that it is over, and says when to come again.
func (c *Recorder) sample(t *track, st restores.Status, over bool) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	t.status = st
	if over {
		t.over, t.ended, t.r = true, now, nil
		c.ended++
		if !st.Resident.IsZero() {
			now = st.Resident
		}
		defer c.forgetOld()
	}
	if len(t.samples) == maxSamples {
		for i := range maxSamples / 2 {
			t.samples[i] = t.samples[2*i+1]
		}
		t.samples, t.every = t.samples[:maxSamples/2], 2*t.every
	}
	ms := max(now.Sub(st.Prepared).Milliseconds(), 0)
	for len(t.samples) > 0 && t.samples[len(t.samples)-1].Ms >= ms {
		t.samples = t.samples[:len(t.samples)-1]
	}
	b := st.Bytes
	t.samples = append(t.samples, Sample{ms, st.Total - st.Missing, st.Faults, b.Images, b.Demand, b.Hot, b.Sweep})
	return t.every
}

// forgetOld keeps the number of those that are over. mu is held.
func (c *Recorder) forgetOld() {
	ended := 0
	for _, t := range c.tracks {
		if t.over {
			ended++
		}
	}
	c.tracks = slices.DeleteFunc(c.tracks, func(t *track) bool {
		if t.over && ended > maxEnded {
			ended--
			return true
		}
		return false
	})
}

// Restores gives the restores in progress and the last ones that are over, the newest first, and how many have come to
// an end. A client that knows all of these gets those in progress only.
func (c *Recorder) Restores(known int64) (list []Progress, ended int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := []Progress{}
	for _, t := range slices.Backward(c.tracks) {
		if t.over && known == c.ended {
			continue
		}
		out = append(out, Progress{t.status, t.over, t.ended, slices.Clone(t.samples)})
	}
	return out, c.ended
}

// Close ends the record.
func (c *Recorder) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	close(c.quit)
	c.wg.Wait()
}
