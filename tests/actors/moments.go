package actors

import (
	"math/rand/v2"
	"strings"
	"time"
)

// Moments gives n moments within length, in no order: one at random in each n-th part of it.
func Moments(r *rand.Rand, n int, length time.Duration) []time.Duration {
	all := make([]time.Duration, n)
	for i := range all {
		all[i] = time.Duration((float64(i) + r.Float64()) / float64(n) * float64(length))
	}
	r.Shuffle(n, func(i, k int) { all[i], all[k] = all[k], all[i] })
	return all
}

// Steps of a dump, as they are seen from outside.
const (
	Preparing  = "before the processes are touched"
	Suspending = "GPU memory goes to the processes"
	Stopping   = "criu stops and reads the processes"
	Writing    = "criu writes memory"
	Resuming   = "GPU memory goes back"
	Ended      = "after the dump"
)

// Order has the steps as they follow one another.
var Order = []string{Preparing, Suspending, Stopping, Writing, Resuming, Ended}

// Watch tells the step that a dump is in. It has to be asked again and again from the dump's start on: what is seen of
// the first and the last steps is alike.
type Watch struct {
	d    *Dump
	last string
}

// NewWatch begins to watch a dump that has just been started.
func NewWatch(d *Dump) *Watch { return &Watch{d: d, last: Preparing} }

// Step gives the step that the dump is in now.
func (w *Watch) Step() string {
	criu := w.d.Find(CRIU)
	traced := strings.TrimSpace(status(w.d.Target, "TracerPid"))
	stopped := strings.HasPrefix(status(w.d.Target, "State"), "T")
	now := Preparing
	switch {
	case criu != 0 && WritesPages(criu):
		now = Writing
	case w.last == Writing && criu != 0:
		now = Writing // between the memory of two processes
	case criu != 0 && traced != "0":
		now = Stopping
	case w.last == Writing || w.last == Resuming:
		now = Resuming
		if !stopped && w.d.Find(Holder) == 0 {
			now = Ended
		}
	case w.last == Suspending || w.d.Find(Holder) != 0 || stopped:
		now = Suspending
	}
	w.last = now
	return now
}
