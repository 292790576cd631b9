package upkeep

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// Clock is where time comes from. Tests have one of their own.
type Clock struct {
	Now   func() time.Time
	Sleep func(ctx context.Context, d time.Duration) error // fails at once when ctx ends
}

// WallClock is the clock of the machine.
var WallClock = Clock{Now: time.Now, Sleep: sleep}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pace bounds what is read in a second: within any span of time no more than the rate allows for it and for a tenth of
// a second more. The zero value has no bound. One goroutine uses it.
type pace struct {
	clock Clock
	limit *rate.Limiter
}

// newPace gives a pace of so many bytes a second; 0 is no bound.
func newPace(perSecond int64, c Clock) pace {
	if perSecond == 0 {
		return pace{}
	}
	p := pace{clock: c, limit: rate.NewLimiter(rate.Limit(perSecond), int(max(1, perSecond/10)))}
	p.limit.AllowN(c.Now(), p.limit.Burst()) // nothing is saved up at the beginning
	return p
}

// most gives how much is to be read at once, so that a slow pace does not come in bursts.
func (p *pace) most(n int64) int64 {
	if p.limit == nil {
		return n
	}
	return min(n, int64(p.limit.Burst()))
}

// wait waits until n bytes may be read.
func (p *pace) wait(ctx context.Context, n int64) error {
	if p.limit == nil {
		return ctx.Err()
	}
	for n > 0 {
		k := p.most(n)
		now := p.clock.Now()
		if err := p.clock.Sleep(ctx, p.limit.ReserveN(now, int(k)).DelayFrom(now)); err != nil {
			return err
		}
		n -= k
	}
	return ctx.Err()
}
