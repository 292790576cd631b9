package upkeep

import (
	"context"
	"log/slog"

	"golang.org/x/sync/semaphore"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/reading"
	"github.com/gpucr/gpucr-fs/index/roots"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// Jobs are what keeps a store in order. They are safe for concurrent use.
type Jobs struct {
	chunks  *chunks.Store
	roots   *roots.Set
	reading *reading.Reader
	o       Options
	log     *slog.Logger
	Hooks   Hooks

	// one collection, verification, or batch of an optimization at a time; who waits may give up
	gcMu *semaphore.Weighted

	life    context.Context // ends when the store is closed
	endLife context.CancelFunc
}

// Options of the jobs over a store.
type Options struct {
	Dir      string   // of the store
	ID       [16]byte // of the store
	Logger   *slog.Logger
	Storage  storage.Storage
	Workers  int // goroutines that read and check
	MaxChunk int // bytes of the largest chunk
	ReadOnly bool
}

// Hooks are for tests.
type Hooks struct {
	Begun   chunks.Hook // gc has committed, and looks next for what is in use
	Found   chunks.Hook // gc knows what is in use
	Placed  chunks.Hook // optimize has written slots anew, and nobody knows of them
	Checked chunks.Hook // optimize has read them back, and is about to commit
	Moved   chunks.Hook // the index knows them
	Clock   *Clock      // of verifications
}

// New gives the jobs over a store.
func New(c *chunks.Store, s *roots.Set, r *reading.Reader, o Options) *Jobs {
	j := &Jobs{gcMu: semaphore.NewWeighted(1), chunks: c, roots: s, reading: r, o: o, log: o.Logger}
	j.life, j.endLife = context.WithCancel(context.Background())
	return j
}

// Cancel has all jobs end soon; what begins later ends at once.
func (s *Jobs) Cancel() { s.endLife() }

// CancelAndHold is cancel, and waits for the end of what gives space back, moves or verifies. None of that runs before
// release is called.
func (s *Jobs) CancelAndHold() (release func()) {
	s.endLife()
	_ = s.gcMu.Acquire(context.Background(), 1) // it fails with its context only
	return func() { s.gcMu.Release(1) }
}

// during gives a context that ends with ctx or when the store is closed.
func (s *Jobs) during(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.life, cancel)
	return ctx, func() { stop(); cancel() }
}
