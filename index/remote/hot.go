package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/index/remote/object"
)

// A hot set that was packed after its checkpoint had been pushed has a root of its own (catalog.Beside), so that its
// packs are kept and collected as those of checkpoints are. Its root has the sum of the profile that it was packed by.
// A node with another profile does not take it, and one that finds no profile in the bucket does not look for it.

// PushHot takes to the bucket the hot set that a node has packed by this profile of a checkpoint, in place of an
// earlier one. The checkpoint stands there, and has the profile there (PutProfile). done is false where another machine
// pushes a hot set of it, or the node has none any more. tell is told of each piece that it has dealt with, by its
// bytes. One push of this Store runs at a time.
func (s *Store) PushHot(
	ctx context.Context, n Node, id string, profile []byte, tell func(bytes int64),
) (done bool, err error) {
	select {
	case s.pushing <- struct{}{}:
		defer func() { <-s.pushing }()
	case <-ctx.Done():
		return false, named("push hot set", id, ctx.Err())
	}
	done, err = s.pushHot(ctx, n, id, crc32c.Checksum(profile), tell)
	if err != nil {
		return false, named("push hot set", id, err)
	}
	return done, nil
}

func (s *Store) pushHot(
	ctx context.Context, n Node, id string, profile uint32, tell func(bytes int64),
) (done bool, err error) {
	name := catalog.Beside(id)
	d, err := s.begin(ctx, name)
	if errors.Is(err, catalog.ErrExists) {
		k, e, ferr := s.hotRoot(ctx, id)
		if class := fault.ClassOf(Classify("", ferr)); class == fault.Unsupported {
			return false, nil // of a later version
		} else if ferr != nil && class != fault.Corrupt {
			return false, ferr // what stands may be right
		}
		if ferr == nil && k != nil && e.Profile == profile {
			return true, nil
		}
		if err = s.c.Remove(ctx, name); err == nil || errors.Is(err, catalog.ErrNotFound) {
			d, err = s.begin(ctx, name)
		}
	}
	if errors.Is(err, catalog.ErrInUse) || errors.Is(err, catalog.ErrExists) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	p := s.newPush(ctx, n, d, name)
	defer p.end()
	res, err := p.uploaded(p.job.EndHot(id, tell))
	if err == nil {
		_, err = p.seal(ctx, res, Meta{ID: id, Profile: profile})
	}
	if err != nil {
		p.abort(ctx)
		if fault.ClassOf(err) == fault.NotFound {
			return false, nil
		}
		return false, err
	}
	s.o.Pushes.Ended(name)
	return true, nil
}

// hotRoot gives the root of a checkpoint's hot set, nil where there is none.
func (s *Store) hotRoot(ctx context.Context, id string) (*catalog.Checkpoint, Entry, error) {
	k, err := s.c.Find(ctx, catalog.Beside(id))
	if errors.Is(err, catalog.ErrNotFound) {
		return nil, Entry{}, nil
	}
	if err != nil {
		return nil, Entry{}, err
	}
	e, err := s.entryOf(k.Record)
	if err == nil && e.ID != id {
		err = entryError(k.Name, fmt.Errorf("it is of checkpoint %.40q", e.ID))
	}
	return k, e, err
}

// maxHotList bounds the list of a hot set in bytes: that of one of 100 GiB has less.
const maxHotList = 64 << 20

// hotList gives the list of the hot set that the bucket has of a checkpoint for the profile with this sum, nil where
// there is none.
func (s *Store) hotList(ctx context.Context, id string, profile uint32) (list *object.Source, err error) {
	err = foundAnew(func() error {
		list, err = s.hotListFound(ctx, id, profile)
		return err
	})
	return list, err
}

func (s *Store) hotListFound(ctx context.Context, id string, profile uint32) (*object.Source, error) {
	k, e, err := s.hotRoot(ctx, id)
	if err != nil || k == nil || e.Profile != profile {
		return nil, err
	}
	r, err := listOf(ctx, k, e)
	if err == nil && k.Packs[len(k.Packs)-1].Size > maxHotList {
		err = errors.New("its list is too long")
	}
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(r)
	r.Reader = bytes.NewReader(b)
	return &r, err
}
