package bucket_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
)

// TestMeter counts requests by kind: what is moved, what fails, what is made again, how long it takes.
func TestMeter(t *testing.T) {
	failures := 0
	mem := memory.New(memory.Hooks{Before: func(c memory.Call) (bool, error) {
		if c.Op == "get" && failures > 0 {
			failures--
			return false, bucket.Fail(bucket.Transient, "get", c.Key, "cut")
		}
		return true, nil
	}})
	var m bucket.Meter
	b := bucket.Retry(m.Over(mem), 5, func(context.Context, int) error { return nil })
	ctx := t.Context()
	put := func(cond bucket.Cond) error {
		_, err := b.Put(ctx, "a", strings.NewReader("12345"), 5, cond)
		return err
	}
	if err := put(bucket.IfAbsent); err != nil {
		t.Fatal(err)
	}
	if put(bucket.IfAbsent) == nil {
		t.Fatal("put twice")
	}
	failures = 2
	p := make([]byte, 10)
	if _, _, err := b.Get(ctx, "a", p, 2); err != nil {
		t.Fatal(err)
	}
	_, _, _ = b.Get(ctx, "none", p, 0)
	_, _ = b.Stat(ctx, "a")
	_, _, _ = b.List(ctx, "", "")
	_ = b.Delete(ctx, "a", bucket.Cond{})
	got := m.Counts()
	for k, want := range map[bucket.Kind]bucket.Counts{
		bucket.KindGet:  {Requests: 4, Bytes: 3, Errors: 2, Retries: 2},
		bucket.KindPut:  {Requests: 2, Bytes: 10},
		bucket.KindHead: {Requests: 1}, bucket.KindList: {Requests: 1}, bucket.KindDelete: {Requests: 1},
	} {
		c := got[k]
		if q := c.Quantile(0.99); q <= 0 || q > time.Minute || c.Time < 0 {
			t.Errorf("%s: 99 %% below %v, %v in all", k, q, c.Time)
		}
		n := int64(0)
		for _, k := range c.Latencies {
			n += k
		}
		if n != c.Requests {
			t.Errorf("%s: %d requests in classes of %d", k, n, c.Requests)
		}
		c.Time, c.Latencies = 0, want.Latencies
		if c != want {
			t.Errorf("%s: %+v, want %+v", k, c, want)
		}
	}
}
