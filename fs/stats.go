package fs

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Stats are counters since mounting.
type Stats struct {
	Opens int64 `json:"opens"` // of sealed files
	// READ requests of sealed content; what the page cache answers is not seen
	Reads        int64 `json:"reads"`
	ReadBytes    int64 `json:"read_bytes"`    // answered to them
	ReadErrors   int64 `json:"read_errors"`   // answered with EIO
	Writes       int64 `json:"writes"`        // WRITE requests to drafts
	WriteBytes   int64 `json:"write_bytes"`   // taken by drafts
	ScratchBytes int64 `json:"scratch_bytes"` // of the store's file system, taken by logs and the like now
	OpenHandles  int64 `json:"open_handles"`  // files of checkpoints open now
	// time to get a READ's bytes from the store, upper bounds within 13 %
	ReadP50 time.Duration `json:"read_p50_ns"`
	ReadP90 time.Duration `json:"read_p90_ns"`
	ReadP99 time.Duration `json:"read_p99_ns"`
	ReadMax time.Duration `json:"read_max_ns"`
	// ReadTimes count the READs by the time they took, in ascending order; what they took since an earlier moment is
	// known by Since.
	ReadTimes []ReadTime `json:"read_times,omitempty"`
}

// ReadTime is a number of READs that took Max at most, and longer than those before.
type ReadTime struct {
	Max   time.Duration `json:"max_ns"`
	Count int64         `json:"count"`
}

// Since gives the times of the READs after an earlier snapshot of the same mount: percentiles, and the bound of the
// longest.
func (s Stats) Since(before Stats) Stats {
	earlier := map[time.Duration]int64{}
	for _, t := range before.ReadTimes {
		earlier[t.Max] = t.Count
	}
	var times []ReadTime
	for _, t := range s.ReadTimes {
		if t.Count -= earlier[t.Max]; t.Count > 0 {
			times = append(times, t)
		}
	}
	q := quantiles(times, 0.5, 0.9, 0.99, 1)
	s.ReadP50, s.ReadP90, s.ReadP99, s.ReadMax, s.ReadTimes = q[0], q[1], q[2], min(q[3], s.ReadMax), times
	return s
}

type counters struct {
	opens, reads, readBytes, readErrors, writes, writeBytes, handles atomic.Int64
	latency                                                          histogram
}

// histogram counts durations in buckets that grow by an eighth of a power of two, so that a bound read from it is at
// most 1/8 too high.
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

// times gives what was counted, without empty buckets.
func (h *histogram) times() (times []ReadTime) {
	for b := range h.buckets {
		if n := h.buckets[b].Load(); n > 0 {
			times = append(times, ReadTime{time.Duration(bucketEnd(b)), n})
		}
	}
	return times
}

// quantiles gives, for each share in qs (ascending), a duration that so many of the samples do not exceed; 0 without
// samples.
func quantiles(times []ReadTime, qs ...float64) []time.Duration {
	out := make([]time.Duration, len(qs))
	var total, seen int64
	for _, t := range times {
		total += t.Count
	}
	q := 0
	for _, t := range times {
		seen += t.Count
		for q < len(qs) && float64(seen) >= qs[q]*float64(total) {
			out[q] = t.Max
			q++
		}
	}
	return out
}

func (h *histogram) quantiles(qs ...float64) []time.Duration {
	out := quantiles(h.times(), qs...)
	for i := range out {
		out[i] = min(out[i], time.Duration(h.max.Load()))
	}
	return out
}

func (c *counters) snapshot() Stats {
	q := c.latency.quantiles(0.5, 0.9, 0.99)
	return Stats{
		Opens: c.opens.Load(), Reads: c.reads.Load(), ReadBytes: c.readBytes.Load(), ReadErrors: c.readErrors.Load(),
		Writes: c.writes.Load(), WriteBytes: c.writeBytes.Load(), OpenHandles: c.handles.Load(),
		ReadP50: q[0], ReadP90: q[1], ReadP99: q[2], ReadMax: time.Duration(c.latency.max.Load()),
		ReadTimes: c.latency.times(),
	}
}
