package remote

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
)

// Once a touch has failed the draft cannot be sealed: what is uploaded for it ends then, and not when all is uploaded.
func TestTouchFails(t *testing.T) {
	var down atomic.Bool
	fails := errors.New("the bucket is down")
	b := memory.New(memory.Hooks{Before: func(memory.Call) (bool, error) {
		if down.Load() {
			return false, fails
		}
		return true, nil
	}})
	d, err := catalog.New(b, catalog.Options{}).Begin(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := touching(ctx, d, time.Millisecond, cancel)
	time.Sleep(20 * time.Millisecond)
	if ctx.Err() != nil {
		t.Fatalf("it ended while all was well: %v", context.Cause(ctx))
	}
	down.Store(true)
	select {
	case <-ctx.Done():
	case <-time.After(30 * time.Second):
	}
	if !errors.Is(context.Cause(ctx), fails) {
		t.Errorf("it goes on, or ended with %v", context.Cause(ctx))
	}
	cancel(nil)
	stop()
}
