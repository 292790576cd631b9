package bucket

import (
	"context"
	"io"
	"sync"
	"time"
)

// Kind is a kind of request.
type Kind string

// Kinds of requests, as servers charge for them.
const (
	KindGet    Kind = "get"
	KindPut    Kind = "put"
	KindList   Kind = "list"
	KindDelete Kind = "delete"
	KindHead   Kind = "head"
)

// Kinds are all of them, in the order in which they are shown.
func Kinds() []Kind { return []Kind{KindGet, KindPut, KindList, KindDelete, KindHead} }

// latencies is how many classes of times Counts has: each twice as long as the one before, from firstLatency on; the
// last one takes what is longer.
const (
	latencies    = 16
	firstLatency = time.Millisecond
)

// Counts are the requests of a kind.
type Counts struct {
	Requests int64         `json:"requests"`
	Bytes    int64         `json:"bytes"`   // of content, got or put
	Errors   int64         `json:"errors"`  // but for those that tell of no such object, or a condition that fails
	Retries  int64         `json:"retries"` // requests that were made again after an error
	Time     time.Duration `json:"time"`    // that they took, summed up
	// Latencies counts requests by their time: the n-th those below LatencyBound(n) and not below the one before.
	Latencies [latencies]int64 `json:"latencies"`
}

// LatencyBound gives the upper bound of the n-th class of Counts.Latencies; the last has none.
func LatencyBound(n int) time.Duration { return firstLatency << n }

// Quantile gives a time that at least the share q of the requests stayed below, to a factor of two; 0 for none.
func (c Counts) Quantile(q float64) time.Duration {
	var seen int64
	for n, k := range c.Latencies {
		if seen += k; seen > 0 && float64(seen) >= q*float64(c.Requests) {
			return LatencyBound(n)
		}
	}
	return 0
}

// Plus gives the sum of two.
func (c Counts) Plus(d Counts) Counts {
	c.Requests, c.Bytes, c.Time = c.Requests+d.Requests, c.Bytes+d.Bytes, c.Time+d.Time
	c.Errors, c.Retries = c.Errors+d.Errors, c.Retries+d.Retries
	for n := range c.Latencies {
		c.Latencies[n] += d.Latencies[n]
	}
	return c
}

// Meter counts requests. The zero Meter is ready; it is safe for concurrent use.
type Meter struct {
	mu     sync.Mutex
	counts map[Kind]Counts
}

// Counts gives what was counted, by kind.
func (m *Meter) Counts() map[Kind]Counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[Kind]Counts{}
	for _, k := range Kinds() {
		out[k] = m.counts[k]
	}
	return out
}

// Over gives a bucket whose requests are counted, each attempt as one.
func (m *Meter) Over(b Bucket) Bucket { return &metered{b, m} }

func (m *Meter) change(k Kind, fn func(*Counts)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counts == nil {
		m.counts = map[Kind]Counts{}
	}
	c := m.counts[k]
	fn(&c)
	m.counts[k] = c
}

// NoteRetry counts that a request which failed is made again, where the bucket is a counted one.
func NoteRetry(b Bucket, k Kind) {
	if m, ok := b.(*metered); ok {
		m.m.change(k, func(c *Counts) { c.Retries++ })
	}
}

type metered struct {
	b Bucket
	m *Meter
}

// count counts a request that began at a time.
func (m *metered) count(k Kind, began time.Time, bytes int64, err error) {
	took := time.Since(began)
	class := 0
	for class < latencies-1 && took >= LatencyBound(class) {
		class++
	}
	m.m.change(k, func(c *Counts) {
		c.Requests++
		c.Time += took
		c.Latencies[class]++
		switch ClassOf(err) {
		case NotFound, Precondition:
		default:
			if err != nil {
				c.Errors++
				return
			}
		}
		c.Bytes += bytes
	})
}

func (m *metered) Get(ctx context.Context, key string, p []byte, off int64) (int, Info, error) {
	began := time.Now()
	n, info, err := m.b.Get(ctx, key, p, off)
	m.count(KindGet, began, int64(n), err)
	return n, info, err
}

func (m *metered) Put(ctx context.Context, key string, content io.ReaderAt, size int64, cond Cond) (string, error) {
	began := time.Now()
	etag, err := m.b.Put(ctx, key, content, size, cond)
	m.count(KindPut, began, size, err)
	return etag, err
}

func (m *metered) List(ctx context.Context, prefix, after string) ([]Info, bool, error) {
	began := time.Now()
	page, more, err := m.b.List(ctx, prefix, after)
	m.count(KindList, began, 0, err)
	return page, more, err
}

func (m *metered) Delete(ctx context.Context, key string, cond Cond) error {
	began := time.Now()
	err := m.b.Delete(ctx, key, cond)
	m.count(KindDelete, began, 0, err)
	return err
}

func (m *metered) Stat(ctx context.Context, key string) (Info, error) {
	began := time.Now()
	info, err := m.b.Stat(ctx, key)
	m.count(KindHead, began, 0, err)
	return info, err
}
