package index

import (
	"context"
	"io"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/roots"
)

// Names gives all checkpoints, oldest first, with Logical and Zero, without Unique, Shared and Stored.
func (s *Store) Names(ctx context.Context) ([]Info, error) { return s.roots.Names(ctx) }

// ParentName gives the name, as it is now, of the checkpoint that the one with this id builds on; "" without one.
func (s *Store) ParentName(id string) string {
	if r, _ := s.roots.ByID(id); r != nil {
		if _, parent := s.roots.Parent(r); parent != nil {
			return parent.Name
		}
	}
	return ""
}

// Remove deletes checkpoints, sealed or incomplete, by name. It removes all or none: it refuses, with InUse, a
// checkpoint that is being written or kept ([Checkpoint.Keep]), or one with a child that is not among names. Payload
// stays until GC. Open files of removed checkpoints work until they are closed.
func (s *Store) Remove(ctx context.Context, names []string) error { return s.roots.Remove(ctx, names) }

// RemoveIDs is Remove by whole ids, so it removes what the caller has looked at, even if another checkpoint has the
// name by now.
func (s *Store) RemoveIDs(ctx context.Context, ids []string) error {
	return s.roots.RemoveIDs(ctx, ids)
}

// Tag adds and removes tags of a sealed checkpoint. A tag names at most one checkpoint: adding it takes it from
// another. Names of checkpoints cannot be tags.
func (s *Store) Tag(ctx context.Context, name string, add, remove []string) error {
	return s.roots.Tag(ctx, name, add, remove)
}

// Rename gives a sealed checkpoint another name; its id, tags, profile and time stay, and open files of it go on. Class
// Exists when the name is taken, by a tag too.
func (s *Store) Rename(ctx context.Context, ref, name string) error {
	return s.roots.Rename(ctx, ref, name)
}

// Label sets labels of a checkpoint, sealed or being written; an empty value takes one away.
func (s *Store) Label(name string, labels map[string]string) error {
	return s.roots.Label(name, labels)
}

// Profile gives the profile stored with a sealed checkpoint: bytes that mean something to those who stored them.
// Class NotFound when there is none.
func (s *Store) Profile(ref string) ([]byte, error) { return s.roots.Profile(ref) }

// SetProfile stores a profile with a sealed checkpoint; nil clears it. The hot set of an earlier one goes.
func (s *Store) SetProfile(ref string, profile []byte) error { return s.roots.SetProfile(ref, profile) }

// HotSet is the packed hot set of a checkpoint, for reading.
type HotSet interface {
	io.ReaderAt
	io.Closer
	// Size gives its length in bytes.
	Size() int64
	// Pieces gives the chunks that hold it, each HotPiece bytes but the last, where it lies in a bucket; none where it
	// is a file of the store.
	Pieces() []Chunk
}

// HotPiece is how many bytes of a hot set lie in one chunk.
const HotPiece = manifest.HotPiece

// hotFile is a hot set of the store.
type hotFile struct{ *roots.HotFile }

func (hotFile) Pieces() []Chunk { return nil }

// HotSet opens the hot set of a sealed checkpoint: that of the store, or the one that came with it from a bucket. Class
// NotFound when there is none. It need not be what was stored: the reader has to check it.
func (s *Store) HotSet(ref string) (HotSet, error) {
	f, err := s.roots.HotSet(ref)
	if err == nil {
		return hotFile{f}, nil
	}
	if fault.ClassOf(err) != fault.NotFound {
		return nil, err
	}
	info, err := s.Info(ref)
	if err != nil {
		return nil, err
	}
	h, err := s.reading.HotSet(info.ID)
	if err != nil {
		return nil, err
	}
	return h, nil
}

// Chunk is a chunk and the place where it lies; see [File.Away].
type Chunk = pack.Chunk

// HasBucket says whether chunks may lie in a bucket.
func (s *Store) HasBucket() bool { return s.o.Distant != nil }

// Bring fetches chunks that lie in a bucket before anybody reads them, in their order, and calls came, from many
// goroutines, with the numbers of those that may be read now; see [File.Away].
func (s *Store) Bring(ctx context.Context, list []Chunk, came func(numbers []int)) {
	s.reading.Bring(ctx, list, came)
}

// SetHotSet stores the hot set of a sealed checkpoint, some size bytes that write writes, in place of an earlier
// one. Class NoSpace when that would leave less free than the store's floor. A new profile and the checkpoint's
// removal delete it.
func (s *Store) SetHotSet(ref string, size int64, write func(io.Writer) error) (err error) {
	return s.roots.SetHotSet(ref, size, write)
}

// Subscribe calls fn with the name of a checkpoint after it was created, sealed, renamed, tagged or removed, until
// cancel is called. fn must not call the store.
func (s *Store) Subscribe(fn func(name string)) (cancel func()) { return s.roots.Subscribe(fn) }

// Checkpoint finds a sealed checkpoint by name, tag, or unique prefix (at least 4 digits) of its ID, in this order.
// Class NotFound.
func (s *Store) Checkpoint(ref string) (*Checkpoint, error) { return s.reading.Checkpoint(ref) }

// Latest is the checkpoint sealed last. Class NotFound in a store without any.
func (s *Store) Latest() (*Checkpoint, error) { return s.reading.Latest() }

// Diff compares two sealed checkpoints file by file, by the content of their chunks: bytes count as shared wherever
// they lie in the other checkpoint.
func (s *Store) Diff(ctx context.Context, a, b string) ([]FileDiff, error) {
	return s.reading.Diff(ctx, a, b)
}

// Create opens a new checkpoint for writing. Class Exists when the name is taken, by an incomplete one too, Invalid
// for names that ValidName refuses.
func (s *Store) Create(ctx context.Context, name string, o CreateOptions) (*Draft, error) {
	return s.drafts.Create(ctx, name, o)
}
