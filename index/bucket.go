package index

import (
	"context"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/pull"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/upload"
)

// Pull makes a checkpoint of a bucket one of this store; see [pull.Puller.Pull].
func (s *Store) Pull(ctx context.Context, name string, bucket [16]byte, list object.Source) (Info, error) {
	defer s.chunks.Distant.Hold()()
	return pull.New(s.chunks, s.roots, s.reading).Pull(ctx, name, bucket, list)
}

// PullHot gives a sealed checkpoint the hot set that a bucket has of it; see [pull.Puller.PullHot].
func (s *Store) PullHot(ctx context.Context, id string, bucket [16]byte, list object.Source) error {
	defer s.chunks.Distant.Hold()()
	return pull.New(s.chunks, s.roots, s.reading).PullHot(ctx, id, bucket, list)
}

// Learn notes where a bucket has the chunks of a checkpoint, by its list object, and no more of it: uploads refer to
// them. KeepLearned keeps that.
func (s *Store) Learn(ctx context.Context, bucket [16]byte, list object.Source) error {
	if err := s.chunks.MayWrite("learn of the remote store"); err != nil {
		return err
	}
	return pull.Learn(ctx, s.o.coder, bucket, list, s.learned.Add)
}

// KeepLearned keeps what Learn was told.
func (s *Store) KeepLearned() { s.learned.Keep() }

// Knows says whether anything is known of a pack object.
func (s *Store) Knows(name object.Name) bool {
	return s.chunks.Distant.Knows(name) || s.learned.Knows(name)
}

// Holds refuses a slot of a pack object that does not hold a chunk; see [chunks.Store.Holds].
func (s *Store) Holds(c pack.Chunk, slot []byte) error { return s.chunks.Holds(c, slot) }

// Writing gives the names of checkpoints that are being written, by their ids, if the store has a bucket.
func (s *Store) Writing() map[string]string { return s.unsealed.Names() }

// Stored gives the chunks that a checkpoint which is being written has stored; see [unsealed.Drafts.Stored].
func (s *Store) Stored(id string, first int) (ids []chunk.ID, waiting int, open bool) {
	return s.unsealed.Stored(id, first)
}

// Uploader gives who takes checkpoints of this store to the bucket with this identity.
func (s *Store) Uploader(bucket [16]byte) *upload.Uploader {
	return upload.New(s.chunks, s.roots, s.reading, s.learned, bucket)
}

// Info describes a sealed checkpoint, without Unique, Shared and Stored. Class NotFound.
func (s *Store) Info(ref string) (Info, error) {
	c, err := s.Checkpoint(ref)
	if err != nil {
		return Info{}, err
	}
	return c.Info(), nil
}
