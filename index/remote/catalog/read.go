package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
)

// Checkpoint is one that stood when it was found.
type Checkpoint struct {
	Record
	c    *Catalog
	etag string
}

// Find gives a checkpoint that stands. The error is ErrNotFound when there is none, also while it is being written.
func (c *Catalog) Find(ctx context.Context, name string) (*Checkpoint, error) {
	r, err := c.lookup(ctx, name)
	if err == nil && r.State != Sealed {
		err = fmt.Errorf("%s: %w", name, ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	return &Checkpoint{r.Record, c, r.etag}, nil
}

// ReadAt reads a pack's bytes from off on into p, as many as there are. When the pack is missing the error is
// ErrRemoved if the checkpoint does not stand any more, ErrMoved if it has other packs now, else ErrCorrupt.
func (k *Checkpoint) ReadAt(ctx context.Context, pack Pack, p []byte, off int64) (int, error) {
	n, info, err := k.c.b.Get(ctx, PackKey(pack.ID), p, off)
	switch {
	case err == nil && info.Size != pack.Size:
		return 0, fmt.Errorf("%s: %w: pack %s has %d bytes, not %d", k.Name, ErrCorrupt, pack.ID, info.Size, pack.Size)
	case bucket.ClassOf(err) != bucket.NotFound:
		return n, err
	}
	now, lerr := k.c.lookup(ctx, k.Name)
	switch {
	case lerr == nil && now.etag == k.etag:
		return 0, fmt.Errorf("%s: %w: pack %s is missing", k.Name, ErrCorrupt, pack.ID)
	case lerr == nil && now.State == Sealed && now.Nonce == k.Nonce:
		return 0, fmt.Errorf("%s: %w", k.Name, ErrMoved)
	case lerr == nil || errors.Is(lerr, ErrNotFound):
		return 0, fmt.Errorf("%s: %w", k.Name, ErrRemoved)
	}
	return 0, lerr
}

// Remove removes a checkpoint that stands. Its packs stay for its readers until collectors have waited
// Patience.Removed. When somebody else removes it at the same time, that is no error. After bucket.Transient it may
// still happen.
//
// Where the root is damaged, its name is given free. Nobody knows its packs: none are kept for its readers.
func (c *Catalog) Remove(ctx context.Context, name string) error {
	k, err := c.Find(ctx, name)
	if errors.Is(err, ErrCorrupt) {
		err = c.free(ctx, name)
		if err == nil {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	for nonce := k.Nonce; ; {
		err = c.keep(ctx, k.Record)
		if err == nil {
			_, err = c.write(ctx, Record{State: Void, Name: name, Nonce: k.Nonce}, bucket.IfMatch(k.etag))
		}
		if bucket.ClassOf(err) != bucket.Precondition {
			break
		}
		// Somebody has changed the root: removed the checkpoint, or given it other packs.
		if k, err = c.Find(ctx, name); errors.Is(err, ErrNotFound) || err == nil && k.Nonce != nonce {
			return nil
		}
		if err != nil || c.omit.removal {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

// RemoveDamaged removes those of the roots beside these checkpoints that are damaged.
func (c *Catalog) RemoveDamaged(ctx context.Context, ids []string) error {
	var errs []error
	for _, id := range ids {
		_, err := c.Find(ctx, Beside(id))
		if errors.Is(err, ErrCorrupt) {
			err = c.free(ctx, Beside(id))
		}
		switch {
		case errors.Is(err, ErrTaken): // it is sound by now, or was: the damage was on the way
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrVersion), errors.Is(err, ErrInvalid):
		case errors.Is(err, ErrCorrupt):
			errs = append(errs, err)
		case err != nil:
			return err // it tells of the bucket, not of this root
		}
	}
	return errors.Join(errs...)
}

// free puts a void root in the place of a damaged one.
func (c *Catalog) free(ctx context.Context, name string) error {
	r, err := c.lookup(ctx, name) // once more: the damage may have been on the way
	switch {
	case err == nil:
		return fmt.Errorf("%s: %w", name, ErrTaken)
	case !errors.Is(err, ErrCorrupt) || r.etag == "":
		return err
	}
	_, err = c.write(ctx, Record{State: Void, Name: name, Nonce: c.o.Nonce()}, bucket.IfMatch(r.etag))
	if bucket.ClassOf(err) == bucket.Precondition {
		return fmt.Errorf("%s: %w", name, ErrTaken)
	}
	return err
}

// keep keeps the packs of a checkpoint for those who read it.
func (c *Catalog) keep(ctx context.Context, r Record) error {
	for n := 1; ; n++ {
		// Without an answer another key is used: the first may yet appear after a collector has deleted it.
		r.State, r.Revision = Removed, c.o.Nonce()
		b := r.encode()
		_, err := c.b.Put(ctx, removedDir+r.Revision, bytes.NewReader(b), int64(len(b)), bucket.IfAbsent)
		if bucket.ClassOf(err) != bucket.Transient || n >= c.o.Attempts {
			return err
		}
		if err := c.o.Wait(ctx, n); err != nil {
			return err
		}
	}
}
