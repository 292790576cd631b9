package fs

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Stats are counters since mounting.
type Stats struct {
	Opens        int64         `json:"opens"`         // of sealed files
	Reads        int64         `json:"reads"`         // READ requests of sealed content; what the page cache answers is not seen
	ReadBytes    int64         `json:"read_bytes"`    // answered to them
	ReadErrors   int64         `json:"read_errors"`   // answered with EIO
	Writes       int64         `json:"writes"`        // WRITE requests to drafts
	WriteBytes   int64         `json:"write_bytes"`   // taken by drafts
	ScratchBytes int64         `json:"scratch_bytes"` // of the store's file system, taken by logs and the like now
	OpenHandles  int64         `json:"open_handles"`  // files of checkpoints open now
	ReadP50      time.Duration `json:"read_p50_ns"`   // time to get a READ's bytes from the store, upper bounds within 13 %
	ReadP90      time.Duration `json:"read_p90_ns"`
	ReadP99      time.Duration `json:"read_p99_ns"`
	ReadMax      time.Duration `json:"read_max_ns"`
}

type counters struct {
	opens, reads, readBytes, readErrors, writes, writeBytes, handles atomic.Int64
	latency                                                          histogram
}

// histogram counts durations in buckets that grow by an eighth of a power of two, so that a bound read from it is at most 1/8 too high.
type histogram struct {
	buckets [64 * 8]atomic.Int64
	max     atomic.Int64
}

func bucketOf(ns uint64) int {
	if ns < 8 {
		return int(ns)
	}
	e := bits.Len64(ns) - 1
	return e*8 + int(ns>>(e-3)&7)
}

// bucketEnd is the largest duration of bucket b.
func bucketEnd(b int) uint64 {
	if b < 24 { // below 8 ns the buckets are single values; 8..23 stay empty
		return uint64(b)
	}
	e := b / 8
	return (uint64(8+b%8)+1)<<(e-3) - 1
}

func (h *histogram) add(d time.Duration) {
	ns := max(int64(d), 0)
	h.buckets[bucketOf(uint64(ns))].Add(1)
	for {
		old := h.max.Load()
		if ns <= old || h.max.CompareAndSwap(old, ns) {
			return
		}
	}
}

// quantiles gives, for each share in qs (ascending), a duration that so many of the samples do not exceed; 0 without samples.
func (h *histogram) quantiles(qs ...float64) []time.Duration {
	out := make([]time.Duration, len(qs))
	var total int64
	counts := make([]int64, len(h.buckets))
	for i := range h.buckets {
		counts[i] = h.buckets[i].Load()
		total += counts[i]
	}
	if total == 0 {
		return out
	}
	var seen int64
	q := 0
	for b, n := range counts {
		seen += n
		for q < len(qs) && float64(seen) >= qs[q]*float64(total) {
			out[q] = min(time.Duration(bucketEnd(b)), time.Duration(h.max.Load()))
			q++
		}
	}
	return out
}

func (c *counters) snapshot() Stats {
	q := c.latency.quantiles(0.5, 0.9, 0.99)
	return Stats{
		Opens: c.opens.Load(), Reads: c.reads.Load(), ReadBytes: c.readBytes.Load(), ReadErrors: c.readErrors.Load(),
		Writes: c.writes.Load(), WriteBytes: c.writeBytes.Load(), OpenHandles: c.handles.Load(),
		ReadP50: q[0], ReadP90: q[1], ReadP99: q[2], ReadMax: time.Duration(c.latency.max.Load()),
	}
}
