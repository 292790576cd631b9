// Package ranges asks for ranges of objects as the way to a bucket bears it.
//
// A Lane asks for one range after another, of one kind of urgency. A request that takes longer than nearly all of its
// kind did, those of about its length, is asked a second time, and the answer that comes first counts: what hangs on a
// bad connection, or on a server that is busy, does not hold up who waits. How much is asked twice is bounded.
//
// A Window bounds how many ranges are under way at once, and finds out how many are worth it: one more as long as that
// brought more, fewer when it did not, half of them when the server refuses.
package ranges

import (
	"context"
	"math/bits"
	"slices"
	"sync"
	"time"
)

const (
	// fewest is how many requests of a kind must have been answered before one can be called slow.
	fewest = 24
	// remembered is how many of the last ones count.
	remembered = 128
	// twiceShare: of so many bytes one may be asked twice, beyond the first twiceFree.
	twiceShare = 64
	twiceFree  = 8 << 20
	// leastDelay is how long every request may take.
	leastDelay = 20 * time.Millisecond
)

// Lane is the requests of one kind of urgency. The zero value is ready. It is safe for concurrent use.
type Lane struct {
	mu           sync.Mutex
	kinds        [64]kind // by the length of the range, in powers of two
	asked, twice int64    // bytes
	hedged       int64    // requests
}

// kind is the requests of about the same length.
type kind struct {
	took []time.Duration // of the last ones, in a ring
	next int
	slow time.Duration // of twenty, nineteen took less
}

func kindOf(n int) int { return bits.Len(uint(n)) % 64 }

// Read fills p by get, which is called a second time, beside the first call, where that is slow. get is given a buffer
// of p's length. When Read returns, none of its calls is under way.
func (l *Lane) Read(ctx context.Context, p []byte, get func(ctx context.Context, p []byte) error) error {
	begun := time.Now()
	delay := l.begin(len(p))
	if delay == 0 {
		err := get(ctx, p)
		l.end(len(p), time.Since(begun), err)
		return err
	}
	firstCtx, stopFirst := context.WithCancel(ctx)
	defer stopFirst()
	first := make(chan error, 1)
	go func() { first <- get(firstCtx, p) }()
	late := time.NewTimer(delay)
	defer late.Stop()
	select {
	case err := <-first:
		l.end(len(p), time.Since(begun), err)
		return err
	case <-late.C:
	}
	if !l.again(len(p)) {
		err := <-first
		l.end(len(p), time.Since(begun), err)
		return err
	}
	secondCtx, stopSecond := context.WithCancel(ctx)
	defer stopSecond()
	q := make([]byte, len(p))
	second := make(chan error, 1)
	go func() { second <- get(secondCtx, q) }()
	var err error
	select {
	case err = <-first:
		if err == nil {
			stopSecond()
			<-second
			break
		}
		if err = <-second; err == nil {
			copy(p, q)
		}
	case err = <-second:
		if err != nil {
			err = <-first
			break
		}
		stopFirst()
		<-first
		copy(p, q)
	}
	l.end(len(p), time.Since(begun), err)
	return err
}

// begin gives how long a request may take before it counts as slow, 0 where nothing is known of its kind.
func (l *Lane) begin(n int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked += int64(n)
	k := &l.kinds[kindOf(n)]
	if len(k.took) < fewest {
		return 0
	}
	return max(k.slow+k.slow/4, leastDelay)
}

// again says whether a request may be made a second time.
func (l *Lane) again(n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.twice+int64(n) > twiceFree+l.asked/twiceShare {
		return false
	}
	l.twice += int64(n)
	l.hedged++
	return true
}

// Hedged gives how many requests were made a second time.
func (l *Lane) Hedged() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hedged
}

// end remembers how long a request took.
func (l *Lane) end(n int, took time.Duration, err error) {
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := &l.kinds[kindOf(n)]
	if len(k.took) < remembered {
		k.took = append(k.took, took)
	} else {
		k.took[k.next] = took
	}
	k.next = (k.next + 1) % remembered
	if len(k.took) < fewest || k.next%8 == 0 {
		sorted := slices.Sorted(slices.Values(k.took))
		k.slow = sorted[len(sorted)*19/20]
	}
}
