package remote

import (
	"bytes"
	"cmp"
	"context"
	"errors"

	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/remote/profile"
)

// PutProfile keeps the profile of a checkpoint that stands, for those who pull it; see package profile.
func (s *Store) PutProfile(ctx context.Context, id string, learned []byte) error {
	return Classify("keep a profile", profile.Put(ctx, s.b, s.o.Cipher, id, learned))
}

// learnedSoon reads the profile of a checkpoint, and the hot set that belongs to it, while its list is read. take has
// to be called: it gives them to a node that has the checkpoint and none. Without a profile there it asks for nothing
// else.
func (s *Store) learnedSoon(ctx context.Context, id string) (take func(n Node)) {
	var learned []byte
	var hot *object.Source
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		if learned, err = profile.Get(ctx, s.b, s.o.Cipher, id); err == nil && len(learned) > 0 {
			hot, err = s.hotList(ctx, id, crc32c.Checksum(learned))
		}
	}()
	return func(n Node) {
		<-done
		if _, ierr := n.Info(id); ierr != nil {
			return // it was not pulled
		}
		if len(learned) > 0 {
			has, perr := n.Profile(id)
			if fault.ClassOf(perr) == fault.NotFound {
				has, perr = learned, n.SetProfile(id, learned)
			}
			if perr == nil && hot != nil && bytes.Equal(has, learned) {
				perr = n.PullHot(ctx, id, s.id, *hot)
			}
			err = errors.Join(err, perr)
		}
		if err != nil && ctx.Err() == nil {
			s.o.Logger.Warn("what was learned of a checkpoint is in the remote store and not used", "checkpoint", id,
				"err", err)
		}
	}
}

// SweepLearned deletes profiles, and removes hot sets, of checkpoints that do not stand any more. Where a root cannot
// be understood, it only removes the damaged roots of hot sets. Packs are left to the collector.
func (s *Store) SweepLearned(ctx context.Context) error {
	const op = "gc"
	profiles, err := profile.All(ctx, s.b)
	hot, hotErr := s.c.AllBeside(ctx)
	if err = cmp.Or(err, hotErr); err != nil {
		return Classify(op, err)
	}
	if len(profiles)+len(hot) == 0 {
		return nil
	}
	list, unread, err := s.ListWhole(ctx)
	if err == nil && len(unread) > 0 {
		err = Classify(op, s.c.RemoveDamaged(ctx, hot))
	}
	if err != nil || len(unread) > 0 {
		return err
	}
	stands := map[string]bool{}
	for _, e := range list {
		stands[e.ID] = true
	}
	for _, id := range profiles {
		if stands[id] {
			continue
		}
		if err := profile.Delete(ctx, s.b, id); err != nil {
			return Classify(op, err)
		}
	}
	for _, id := range hot {
		if stands[id] {
			continue
		}
		if err := s.c.Remove(ctx, catalog.Beside(id)); err != nil && !errors.Is(err, catalog.ErrNotFound) {
			return Classify(op, err)
		}
	}
	return nil
}
