package catalog

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
)

// Exchange gives a checkpoint that stands other packs with the same content, and meta that tells of them. needed says
// of the packs that the root lists which the content lies in now: others may be what an Exchange has left that did not
// end, and may be gone. The packs that are needed no more are kept for readers as those of a removed checkpoint are.
//
// The error is ErrTaken when somebody has changed the root, or a pack was taken away: then the checkpoint is as it was.
// After another error it is as it was or has the other packs, now or later; in both cases it stands.
func (k *Checkpoint) Exchange(ctx context.Context, needed func(Pack) bool, packs []Pack, meta []byte) error {
	fail := func(err error) error {
		if bucket.ClassOf(err) == bucket.Precondition {
			err = ErrTaken
		}
		return fmt.Errorf("give %s other packs: %w", k.Name, err)
	}
	now := root{k.Record, rootDir + k.Name, k.etag}
	fresh := slices.DeleteFunc(slices.Clone(packs), func(p Pack) bool {
		return slices.Contains(k.Packs, p) && (needed(p) || k.c.omit.rest)
	})
	if len(fresh) > 0 {
		var err error
		if now, err = k.c.publish(ctx, now, fresh); err != nil {
			return fail(err)
		}
	}
	if !k.c.omit.grace {
		if err := k.c.keep(ctx, k.Record); err != nil {
			return fail(err)
		}
	}
	r := Record{State: Sealed, Name: k.Name, Nonce: k.Nonce, Packs: packs, Meta: meta}
	cond := bucket.IfMatch(now.etag)
	if k.c.omit.match {
		cond = bucket.Cond{}
	}
	if _, err := k.c.write(ctx, r, cond); err != nil {
		return fail(err)
	}
	return nil
}

// publish makes a sealed root list further packs before those that it has, and sees whether they stand then. The error
// is ErrTaken when they do not: then it does not list them any more, if the bucket can be reached.
func (c *Catalog) publish(ctx context.Context, old root, fresh []Pack) (root, error) {
	if c.omit.publish {
		if lost, err := c.lost(ctx, fresh); err != nil || len(lost) > 0 {
			return root{}, fmt.Errorf("%w: %w", ErrTaken, err)
		}
	}
	r := old.Record
	r.Packs = slices.DeleteFunc(slices.Clone(old.Packs), func(p Pack) bool { return slices.Contains(fresh, p) })
	r.Packs = append(slices.Clone(fresh), r.Packs...)
	now, err := c.write(ctx, r, bucket.IfMatch(old.etag))
	if err != nil || c.omit.check || c.omit.publish {
		return now, err
	}
	lost, err := c.lost(ctx, fresh)
	if err != nil {
		return root{}, err
	}
	if len(lost) > 0 {
		_, _ = c.write(ctx, old.Record, bucket.IfMatch(now.etag)) // where that fails somebody calls Trim later
		return root{}, ErrTaken
	}
	return now, nil
}

// Trim makes the root list no packs but those that are needed, in their order: an Exchange that did not end has left
// others there. Nothing is wrong when somebody has changed the root.
func (k *Checkpoint) Trim(ctx context.Context, needed func(Pack) bool) error {
	r := k.Record
	r.Packs = slices.DeleteFunc(slices.Clone(r.Packs), func(p Pack) bool { return !needed(p) })
	if len(r.Packs) == len(k.Packs) {
		return nil
	}
	_, err := k.c.write(ctx, r, bucket.IfMatch(k.etag))
	if err = unlessPrecondition(err); err != nil {
		return fmt.Errorf("trim %s: %w", k.Name, err)
	}
	return nil
}

// retired is the run of tombstones that Retire puts, one for each pack however often. Nobody takes them back, and no
// removal relies on them.
const retired = "retired"

// Retire sees to it that packs are not used for new checkpoints any more. It puts a tombstone over each, which stays
// until the pack goes. The checkpoints that need them are not concerned.
func (c *Catalog) Retire(ctx context.Context, packs []Pack) error {
	for _, p := range packs {
		if _, err := c.b.Put(ctx, tombKey(p.ID, retired), bytes.NewReader(nil), 0, bucket.Cond{}); err != nil {
			return fmt.Errorf("retire pack %s: %w", p.ID, err)
		}
	}
	return nil
}
