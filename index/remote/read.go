package remote

import (
	"context"
	"fmt"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/remote/ranges"
)

// ReadRange fills p with what lies at off in a pack object. A bucket that does not give it is asked again for
// Options.Timeout, also where it refuses these credentials, which somebody may renew meanwhile; one that is slow is
// asked a second time beside the first (package ranges). Class NotFound when the pack is gone: the checkpoint was
// removed.
func (s *Store) ReadRange(ctx context.Context, name object.Name, p []byte, off int64) error {
	return s.read(ctx, &s.waited, s.b, name, p, off)
}

// ReadAhead is ReadRange for what nobody waits for yet. BeginAhead says when it may be called.
func (s *Store) ReadAhead(ctx context.Context, name object.Name, p []byte, off int64) error {
	return s.read(ctx, &s.ahead, s.o.Ahead, name, p, off)
}

// BeginAhead waits until one more range may be read ahead; see [ranges.Window.Begin].
func (s *Store) BeginAhead(ctx context.Context) (end func(bytes int64), err error) {
	return s.window.Begin(ctx)
}

func (s *Store) read(
	ctx context.Context, lane *ranges.Lane, b bucket.Bucket, name object.Name, p []byte, off int64,
) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	for n := 1; ; n++ {
		err := lane.Read(ctx, p, func(ctx context.Context, p []byte) error { return readOnce(ctx, b, name, p, off) })
		if err == nil || !s.mayPass(lane, bucket.ClassOf(err)) {
			return Classify("fetch", err)
		}
		if lane == &s.ahead {
			s.window.Refused()
		}
		s.o.Logger.Warn("a range of the bucket could not be read, and is asked for again", "pack", name.String(),
			"offset", off, "bytes", len(p), "err", err)
		if bucket.Backoff(ctx, n) != nil {
			return Classify("fetch", err)
		}
		bucket.NoteRetry(b, bucket.KindGet)
	}
}

// mayPass says whether what went wrong may pass, for somebody who waits for it.
func (s *Store) mayPass(lane *ranges.Lane, class bucket.Class) bool {
	switch class {
	case bucket.Transient, bucket.Corrupt:
		return true
	case bucket.Denied, bucket.NoBucket:
		return lane == &s.waited
	}
	return false
}

func readOnce(ctx context.Context, b bucket.Bucket, name object.Name, p []byte, off int64) error {
	n, info, err := b.Get(ctx, catalog.PackKey(name.String()), p, off)
	if err == nil && n < len(p) {
		return fmt.Errorf("pack object %s has %d bytes: %w", name, info.Size, object.ErrCorrupt)
	}
	return err
}
