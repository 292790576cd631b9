package bucket

import (
	"context"
	"io"
	"math/rand/v2"
	"time"
)

// Wait is how a retry waits before attempt n, which begins at 1. It gives the context's error when that ends first.
type Wait func(ctx context.Context, attempt int) error

const (
	firstWait = 100 * time.Millisecond
	longest   = 10 * time.Second
)

// Backoff waits for a random part of 0.1 s, doubled with each attempt up to 10 s.
func Backoff(ctx context.Context, attempt int) error {
	limit := min(firstWait<<min(attempt-1, 10), longest)
	t := time.NewTimer(limit/2 + rand.N(limit/2))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Retry gives a bucket that repeats requests which fail with class Transient, up to attempts times in all. Writes are
// not repeated, nor are removals with a condition: only their caller can find out what became of the first one.
func Retry(b Bucket, attempts int, wait Wait) Bucket { return &retrying{b, attempts, wait} }

type retrying struct {
	Bucket
	attempts int
	wait     Wait
}

func (r *retrying) again(ctx context.Context, k Kind, do func() error) error {
	for n := 1; ; n++ {
		err := do()
		if n >= r.attempts || ClassOf(err) != Transient {
			return err
		}
		if werr := r.wait(ctx, n); werr != nil {
			return werr
		}
		NoteRetry(r.Bucket, k)
	}
}

func (r *retrying) Get(ctx context.Context, key string, p []byte, off int64) (n int, info Info, err error) {
	err = r.again(ctx, KindGet, func() (err error) {
		n, info, err = r.Bucket.Get(ctx, key, p, off)
		return err
	})
	return n, info, err
}

func (r *retrying) List(ctx context.Context, prefix, after string) (page []Info, more bool, err error) {
	err = r.again(ctx, KindList, func() (err error) {
		page, more, err = r.Bucket.List(ctx, prefix, after)
		return err
	})
	return page, more, err
}

func (r *retrying) Stat(ctx context.Context, key string) (info Info, err error) {
	err = r.again(ctx, KindHead, func() (err error) {
		info, err = r.Bucket.Stat(ctx, key)
		return err
	})
	return info, err
}

func (r *retrying) Delete(ctx context.Context, key string, cond Cond) error {
	if !cond.None() {
		return r.Bucket.Delete(ctx, key, cond)
	}
	return r.again(ctx, KindDelete, func() error { return r.Bucket.Delete(ctx, key, cond) })
}

func (r *retrying) Put(ctx context.Context, key string, content io.ReaderAt, size int64, cond Cond) (string, error) {
	return r.Bucket.Put(ctx, key, content, size, cond)
}
