package bucket_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// request is a write that a bad bucket does in its own way.
type request struct {
	ctx     context.Context
	b       bucket.Bucket
	key     string
	content io.ReaderAt
	size    int64
}

func (r request) put(cond bucket.Cond) (string, error) {
	return r.b.Put(r.ctx, r.key, r.content, r.size, cond)
}

func (r request) stat() (bucket.Info, error) { return r.b.Stat(r.ctx, r.key) }

// bad is a bucket whose writes do something else with their conditions.
type bad struct {
	*memory.Bucket
	write func(request, bucket.Cond) (string, error)
}

func (b bad) Put(ctx context.Context, key string, c io.ReaderAt, n int64, cond bucket.Cond) (string, error) {
	return b.write(request{ctx, b.Bucket, key, c, n}, cond)
}

// TestProbeRefuses: each way of not keeping conditions is noticed, and told with a hint.
func TestProbeRefuses(t *testing.T) {
	plain := bucket.Cond{}
	failed := &bucket.Error{Class: bucket.Precondition, Op: "put"}
	for _, c := range []struct {
		name string
		put  func(request, bucket.Cond) (string, error)
	}{
		{"ignored", func(r request, _ bucket.Cond) (string, error) {
			return r.put(plain)
		}},
		{"if-match ignored", func(r request, cond bucket.Cond) (string, error) {
			if !cond.Absent() {
				cond = plain
			}
			return r.put(cond)
		}},
		{"if-none-match ignored", func(r request, cond bucket.Cond) (string, error) {
			if cond.Absent() {
				cond = plain
			}
			return r.put(cond)
		}},
		{"if-match writes what is missing", func(r request, cond bucket.Cond) (string, error) {
			if _, err := r.stat(); bucket.ClassOf(err) == bucket.NotFound && cond.ETag() != "" {
				cond = plain
			}
			return r.put(cond)
		}},
		{"inverted", func(r request, cond bucket.Cond) (string, error) {
			info, err := r.stat()
			switch {
			case cond.Absent() && err != nil, cond.ETag() != "" && info.ETag == cond.ETag():
				return "", failed
			}
			return r.put(plain)
		}},
		{"raced", func(r request, cond bucket.Cond) (string, error) {
			info, err := r.stat()
			if cond.Absent() && err == nil || cond.ETag() != "" && info.ETag != cond.ETag() {
				return "", failed
			}
			time.Sleep(time.Millisecond)
			return r.put(plain)
		}},
		{"said to have won", func(r request, cond bucket.Cond) (string, error) {
			if !cond.Absent() {
				return r.put(cond)
			}
			if _, err := r.put(plain); err != nil {
				return "", err
			}
			return "", failed
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := bucket.Probe(t.Context(), bad{memory.New(memory.Hooks{}), c.put})
			if bucket.ClassOf(err) != bucket.Unsupported || !strings.Contains(bucket.HintOf(err), "If-None-Match") {
				t.Fatalf("error %v of class %v, hint %q", err, bucket.ClassOf(err), bucket.HintOf(err))
			}
			if !strings.Contains(err.Error(), "conditional writes") || strings.Contains(err.Error(), "\n") {
				t.Errorf("message %q", err)
			}
			t.Log(err)
		})
	}
}

// torn is a bucket whose reads take an object's content first, and its ETag when another may have replaced it.
type torn struct{ *memory.Bucket }

func (b torn) Get(ctx context.Context, key string, p []byte, off int64) (int, bucket.Info, error) {
	n, _, err := b.Bucket.Get(ctx, key, p, off)
	if err != nil {
		return 0, bucket.Info{}, err
	}
	time.Sleep(time.Millisecond)
	info, err := b.Stat(ctx, key)
	return n, info, err
}

func (b torn) Put(ctx context.Context, key string, c io.ReaderAt, n int64, cond bucket.Cond) (string, error) {
	time.Sleep(time.Millisecond)
	return b.Bucket.Put(ctx, key, c, n, cond)
}

// TestProbeRefusesTornReads: conditional writes hold, but who reads cannot tell what the condition is for.
func TestProbeRefusesTornReads(t *testing.T) {
	_, err := bucket.Probe(t.Context(), torn{memory.New(memory.Hooks{})})
	if bucket.ClassOf(err) != bucket.Unsupported || !strings.Contains(err.Error(), "ETag") {
		t.Error(err)
	}
}

type ignoresDelete struct{ *memory.Bucket }

func (b ignoresDelete) Delete(ctx context.Context, key string, _ bucket.Cond) error {
	return b.Bucket.Delete(ctx, key, bucket.Cond{})
}

func TestProbeFindsConditionalDelete(t *testing.T) {
	for _, c := range []struct {
		b    bucket.Bucket
		want bool
	}{{memory.New(memory.Hooks{}), true}, {ignoresDelete{memory.New(memory.Hooks{})}, false}} {
		found, err := bucket.Probe(t.Context(), c.b)
		if err != nil || found.ConditionalDelete != c.want {
			t.Errorf("%T: found %+v, %v", c.b, found, err)
		}
	}
}

// TestProbeStops: a probe that cannot go on says why, and does not take the bucket for a bad one.
func TestProbeStops(t *testing.T) {
	b := memory.New(memory.Hooks{Before: func(c memory.Call) (bool, error) {
		return false, bucket.Fail(bucket.Denied, c.Op, c.Key, "expired")
	}})
	if _, err := bucket.Probe(t.Context(), b); bucket.ClassOf(err) != bucket.Denied {
		t.Errorf("error %v", err)
	}
}

func TestRetry(t *testing.T) {
	left, calls := 0, 0
	class := bucket.Transient
	b := bucket.Retry(memory.New(memory.Hooks{Before: func(c memory.Call) (bool, error) {
		calls++
		if left--; left >= 0 {
			return false, bucket.Fail(class, c.Op, c.Key, "not now")
		}
		return true, nil
	}}), 3, func(context.Context, int) error { return nil })
	stat := func() error { _, err := b.Stat(t.Context(), "a"); return err }
	write := func() error {
		_, err := b.Put(t.Context(), "a", bytes.NewReader(nil), 0, bucket.Cond{})
		return err
	}
	remove := func(cond bucket.Cond) func() error {
		return func() error { return b.Delete(t.Context(), "a", cond) }
	}
	for _, c := range []struct {
		name           string
		do             func() error
		class          bucket.Class
		failing, calls int
		want           bucket.Class
	}{
		{"read", stat, bucket.Transient, 2, 3, bucket.NotFound},
		{"read given up", stat, bucket.Transient, 9, 3, bucket.Transient},
		{"read denied", stat, bucket.Denied, 9, 1, bucket.Denied},
		{"write", write, bucket.Transient, 1, 1, bucket.Transient},
		{"removal", remove(bucket.Cond{}), bucket.Transient, 2, 3, bucket.Other},
		{"removal with a condition", remove(bucket.IfMatch("x")), bucket.Transient, 1, 1, bucket.Transient},
	} {
		left, calls, class = c.failing, 0, c.class
		if err := c.do(); bucket.ClassOf(err) != c.want || calls != c.calls {
			t.Errorf("%s: %v after %d calls, want %v after %d", c.name, err, calls, c.want, c.calls)
		}
	}
}

func TestBackoffEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if err := bucket.Backoff(ctx, 30); err != cause {
		t.Error(err)
	}
}
