package ranges

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fill is an answer after a time.
func fill(ctx context.Context, p []byte, with byte, after time.Duration) error {
	select {
	case <-time.After(after):
		copy(p, bytes.Repeat([]byte{with}, len(p)))
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestSlowIsAskedAgain has one request of many hang: it is made a second time, whose answer counts, and is ended.
func TestSlowIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Lane
		p := make([]byte, 1<<20)
		for range 40 {
			if err := l.Read(t.Context(), p, func(ctx context.Context, p []byte) error {
				return fill(ctx, p, 1, 30*time.Millisecond)
			}); err != nil {
				t.Fatal(err)
			}
		}
		var calls, ended atomic.Int64
		begun := time.Now()
		err := l.Read(t.Context(), p, func(ctx context.Context, p []byte) error {
			if calls.Add(1) == 1 {
				err := fill(ctx, p, 2, time.Hour)
				ended.Add(1)
				return err
			}
			return fill(ctx, p, 3, 30*time.Millisecond)
		})
		if err != nil || calls.Load() != 2 || ended.Load() != 1 || p[0] != 3 || p[len(p)-1] != 3 {
			t.Errorf("%v after %d calls, %d of them ended, and bytes %d", err, calls.Load(), ended.Load(), p[0])
		}
		if d := time.Since(begun); d > 100*time.Millisecond {
			t.Errorf("answered after %v", d)
		}
		// The first one fails after the second was made, or the second: the other counts.
		for first := range 2 {
			calls.Store(0)
			err := l.Read(t.Context(), p, func(ctx context.Context, p []byte) error {
				if int(calls.Add(1)-1) == first {
					time.Sleep(60 * time.Millisecond)
					return errors.New("lost")
				}
				return fill(ctx, p, 4, 90*time.Millisecond)
			})
			if err != nil || p[0] != 4 {
				t.Errorf("call %d of two failed: %v", first+1, err)
			}
		}
	})
}

// TestAskedAgainIsBounded has every request be slow after a while: only a small part is made twice.
func TestAskedAgainIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Lane
		var bytes atomic.Int64
		p := make([]byte, 256<<10)
		for i := range 500 {
			took := 10 * time.Millisecond * time.Duration(1+i) // always slower than those before
			if err := l.Read(t.Context(), p, func(ctx context.Context, p []byte) error {
				bytes.Add(int64(len(p)))
				return fill(ctx, p, 1, took)
			}); err != nil {
				t.Fatal(err)
			}
		}
		asked := int64(500 * len(p))
		if most := asked + asked/twiceShare + twiceFree; bytes.Load() > most || l.Hedged() == 0 {
			t.Errorf("asked for %d bytes where %d were wanted, %d requests twice", bytes.Load(), asked, l.Hedged())
		}
	})
}

// link gives each range a rate, and all together one.
func link(t *testing.T, w *Window, each, all float64, during time.Duration) (bytesASecond float64) {
	t.Helper()
	const piece = 4 << 20
	var mu sync.Mutex
	under := 0
	var bytes atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), during)
	defer cancel()
	var workers sync.WaitGroup
	for range mostWindow + 4 {
		workers.Go(func() {
			for {
				end, err := w.Begin(ctx)
				if err != nil {
					return
				}
				mu.Lock()
				under++
				rate := min(each, all/float64(under))
				mu.Unlock()
				time.Sleep(10*time.Millisecond + time.Duration(piece/rate*float64(time.Second)))
				mu.Lock()
				under--
				mu.Unlock()
				bytes.Add(piece)
				end(piece)
			}
		})
	}
	workers.Wait()
	return float64(bytes.Load()) / during.Seconds()
}

// TestWindow finds out what a link gives: one that needs many ranges at once, one that is full with few; and halves
// them when the server refuses.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWindow()
		if rate := link(t, w, 20e6, 400e6, 20*time.Second); rate < 0.85*400e6 || w.Limit() < 18 {
			t.Errorf("%.0f MB/s of 400, with %d ranges at once", rate/1e6, w.Limit())
		}
		full := w.Limit()
		w.Refused()
		if w.Limit() > full/2 {
			t.Errorf("%d ranges at once after a refusal", w.Limit())
		}
		w = NewWindow()
		if rate := link(t, w, 100e6, 200e6, 10*time.Second); rate < 0.85*200e6 || w.Limit() > 14 {
			t.Errorf("%.0f MB/s of 200, with %d ranges at once", rate/1e6, w.Limit())
		}
		for range 20 {
			w.Refused()
		}
		if w.Limit() != leastWindow {
			t.Errorf("%d ranges at once after many refusals", w.Limit())
		}
		if rate := link(t, w, 100e6, 400e6, 20*time.Second); rate < 0.7*400e6 {
			t.Errorf("%.0f MB/s of 400 after refusals", rate/1e6)
		}
	})
}

// TestWindowIsLeft ends the context of those who wait: nobody's turn is lost.
func TestWindowIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWindow()
		var ends []func(int64)
		for range firstWindow {
			end, err := w.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, end)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		for range 5 {
			waiting.Go(func() {
				if end, err := w.Begin(ctx); err == nil {
					end(0)
				}
			})
		}
		synctest.Wait()
		cancel()
		ends[0](1)
		waiting.Wait()
		for _, end := range ends[1:] {
			end(1)
		}
		for range firstWindow {
			if _, err := w.Begin(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}
