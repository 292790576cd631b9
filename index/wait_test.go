package index

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

// TestWaitingForVerifyCanBeGivenUp asks for a collection and an optimization while a verification runs, and gives up.
func TestWaitingForVerifyCanBeGivenUp(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "a", map[string][]byte{"pages-1.img": memory(1, 1<<20)})
	running, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := s.Verify(t.Context(),
			VerifyOptions{Progress: func(int64, int64) { once.Do(func() { close(running) }); <-goOn }})
		if err != nil {
			t.Error(err)
		}
	})
	<-running
	for what, call := range map[string]func(context.Context) error{
		"gc":       func(ctx context.Context) error { _, err := s.GC(ctx, GCOptions{}); return err },
		"optimize": func(ctx context.Context) error { _, err := s.Optimize(ctx, OptimizeOptions{}); return err },
		"verify":   func(ctx context.Context) error { _, err := s.Verify(ctx, VerifyOptions{}); return err },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error)
		go func() { result <- call(ctx) }()
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
	close(goOn)
	wg.Wait()
}

func TestTimeNS(t *testing.T) {
	for _, tt := range []struct {
		year int
		ok   bool
	}{{1, false}, {1677, false}, {1678, true}, {1969, true}, {2026, true}, {2261, true}, {2263, false}, {9999, false}} {
		at := time.Date(tt.year, 6, 1, 0, 0, 0, 1, time.UTC)
		ns, ok := TimeNS(at)
		if ok != tt.ok || ok != time.Unix(0, ns).Equal(at) || (ns < 0) != (tt.year < 1970) {
			t.Errorf("the year %d: %d, %v", tt.year, ns, ok)
		}
	}
}
