package index

import (
	"context"
	"io/fs"
)

// STUBS

// Store is an open store.
type Store struct{}

// InitOptions of a new store. The zero value is usable.
type InitOptions struct {
	Compression Compression // default auto
	PackSize    int64       // default 1 GiB
}

// Init makes an empty store in dir, which must not exist or be empty. Class Exists when dir holds a store.
func Init(dir string, o InitOptions) error { panic("stub") }

// Open opens the store at dir for reading and writing; one process at a time (Class InUse, with the holder in the text). It finishes what a crash left undone.
func Open(ctx context.Context, dir string, o Options) (*Store, error) { panic("stub") }

// Repair rebuilds the index of a store that no process has open from the journals beside its packs.
func Repair(ctx context.Context, dir string, o Options) (RepairResult, error) { panic("stub") }

// Close flushes and closes. Open drafts are abandoned and reported as an error.
func (s *Store) Close() error { panic("stub") }

// Dir gives the absolute path of the store; Config its parameters.
func (s *Store) Dir() string    { panic("stub") }
func (s *Store) Config() Config { panic("stub") }

// Names gives all checkpoints, oldest first, without their byte counts (Logical, Zero are set; Unique, Shared, Stored are not). Fast.
func (s *Store) Names(ctx context.Context) ([]Info, error) { panic("stub") }

// List gives all checkpoints with exact byte counts, oldest first.
func (s *Store) List(ctx context.Context) ([]Info, error) { panic("stub") }

// Usage gives the whole store's accounting.
func (s *Store) Usage(ctx context.Context) (Usage, error) { panic("stub") }

// Diff compares two sealed checkpoints file by file.
func (s *Store) Diff(ctx context.Context, a, b string) ([]FileDiff, error) { panic("stub") }

// Checkpoint finds a sealed checkpoint by name, tag, or unique prefix (>= 4 digits) of its ID, in this order. Class NotFound.
func (s *Store) Checkpoint(ref string) (*Checkpoint, error) { panic("stub") }

// Latest is the checkpoint sealed last. Class NotFound in a store without any.
func (s *Store) Latest() (*Checkpoint, error) { panic("stub") }

// Remove deletes checkpoints (sealed or incomplete; not ones being written: InUse) by name. All or none: a checkpoint with children outside names is refused
// with Class InUse naming the child. Payload stays until GC. Open handles of removed checkpoints go on working until closed.
func (s *Store) Remove(ctx context.Context, names []string) error { panic("stub") }

// Tag adds and removes tags of a sealed checkpoint. A tag names at most one checkpoint; adding it moves it.
func (s *Store) Tag(ctx context.Context, name string, add, remove []string) error { panic("stub") }

// GC gives back the space of payload that no checkpoint uses.
func (s *Store) GC(ctx context.Context, o GCOptions) (GCResult, error) { panic("stub") }

// Verify reads payload and manifests and reports every damage; err only where it could not go on.
func (s *Store) Verify(ctx context.Context, o VerifyOptions) (VerifyResult, error) { panic("stub") }

// Stats gives live counters.
func (s *Store) Stats() Stats { panic("stub") }

// Subscribe calls fn after every change of the set of checkpoints (created, sealed, removed); returns its cancel. fn must not call the store.
func (s *Store) Subscribe(fn func(name string)) (cancel func()) { panic("stub") }

// Profile gives the stored profile of a checkpoint (opaque bytes; Class NotFound), SetProfile stores one; nil clears it.
func (s *Store) Profile(name string) ([]byte, error)          { panic("stub") }
func (s *Store) SetProfile(name string, profile []byte) error { panic("stub") }

// Checkpoint is a sealed checkpoint. It is immutable and safe for concurrent use; it needs no closing.
type Checkpoint struct{}

func (c *Checkpoint) Info() Info { panic("stub") } // byte counts as Names gives them

// Entries gives every file, directory and symlink, sorted by path. The caller must not change it.
func (c *Checkpoint) Entries() []FileInfo { panic("stub") }

// Stat gives one entry; path "." is the root directory. Class NotFound.
func (c *Checkpoint) Stat(path string) (FileInfo, error) { panic("stub") }

// Open opens a regular file for reading. Close it: an open file keeps gc from taking its chunks after Remove.
func (c *Checkpoint) Open(path string) (*File, error) { panic("stub") }

// FS gives an io/fs view of the checkpoint (ReadDirFS, StatFS; files are io.ReaderAt and io.Seeker).
func (c *Checkpoint) FS() fs.FS { panic("stub") }

// File is an open regular file of a sealed checkpoint, safe for concurrent use.
type File struct{}

func (f *File) Info() FileInfo { panic("stub") }
func (f *File) Size() int64    { panic("stub") }

// ReadAt reads as io.ReaderAt. Unreadable content is a Class Corrupt error naming checkpoint, file and offset; never wrong bytes, never an early EOF.
func (f *File) ReadAt(p []byte, off int64) (int, error) { panic("stub") }

// Read gives n bytes at off (fewer only at the end of the file) without copying. Release it, once, when its buffers are no longer used.
func (f *File) Read(ctx context.Context, off int64, n int) (*Slices, error) { panic("stub") }

// Extents calls yield for the runs that cover [off, off+n), in order, clipped to that range.
func (f *File) Extents(off, n int64, yield func(Extent) bool) error { panic("stub") }

func (f *File) Close() error { panic("stub") }

// Slices are borrowed, read-only buffers.
type Slices struct{}

func (s *Slices) Buffers() [][]byte { panic("stub") }
func (s *Slices) Len() int          { panic("stub") }
func (s *Slices) Release()          { panic("stub") }

// CreateOptions of a new checkpoint.
type CreateOptions struct {
	Tags []string
}

// Create opens a new checkpoint for writing. Class Exists when the name is taken (an incomplete one of that name included, with a hint), Invalid for names
// outside [A-Za-z0-9._-]{1,128} or with a leading dot.
func (s *Store) Create(ctx context.Context, name string, o CreateOptions) (*Draft, error) {
	panic("stub")
}

// Draft is a checkpoint being written, safe for concurrent use. It is invisible to Checkpoint and Latest until Seal.
type Draft struct{}

func (d *Draft) Name() string { panic("stub") }

// SetParent records that this checkpoint needs another one (Class NotFound if that is not sealed); "" takes it back.
func (d *Draft) SetParent(name string) error { panic("stub") }

// Create makes a new empty regular file and opens it; Class Exists if there is one. Parent directories must exist (Class NotFound).
func (d *Draft) Create(path string, perm fs.FileMode) (*DraftFile, error) { panic("stub") }

// Open opens an existing regular file for reading and writing.
func (d *Draft) Open(path string) (*DraftFile, error)      { panic("stub") }
func (d *Draft) Mkdir(path string, perm fs.FileMode) error { panic("stub") }
func (d *Draft) Symlink(target, path string) error         { panic("stub") }
func (d *Draft) Remove(path string) error                  { panic("stub") } // file, symlink or empty directory; open files live on until closed
func (d *Draft) Rename(from, to string) error              { panic("stub") } // replaces a file at to
func (d *Draft) SetAttr(path string, a Attr) error         { panic("stub") }
func (d *Draft) Stat(path string) (FileInfo, error)        { panic("stub") }
func (d *Draft) ReadDir(path string) ([]FileInfo, error)   { panic("stub") }

// Seal makes the checkpoint complete, durable and immutable: when it returns nil, no crash loses it. All files are flushed; later writes fail with ReadOnly.
func (d *Draft) Seal(ctx context.Context) (Info, error) { panic("stub") }

// Abort gives the checkpoint up and removes its record. After Seal it does nothing.
func (d *Draft) Abort() error { panic("stub") }

// Attr are changes of metadata; nil pointers change nothing.
type Attr struct {
	Perm    *fs.FileMode
	ModTime *int64 // ns since the epoch
}

// DraftFile is an open file of a Draft, safe for concurrent use. Sequential writes stream through the splitter; writes elsewhere work and cost a rewrite of the
// chunks they touch.
type DraftFile struct{}

func (f *DraftFile) WriteAt(p []byte, off int64) (int, error) { panic("stub") } // beyond the end: the gap is zero
func (f *DraftFile) ReadAt(p []byte, off int64) (int, error)  { panic("stub") }
func (f *DraftFile) Truncate(size int64) error                { panic("stub") } // grows with zeros
func (f *DraftFile) PunchHole(off, n int64) error             { panic("stub") }
func (f *DraftFile) Size() int64                              { panic("stub") }
func (f *DraftFile) Info() FileInfo                           { panic("stub") }
func (f *DraftFile) Flush(ctx context.Context) error          { panic("stub") } // reports what background writing failed with
func (f *DraftFile) Close() error                             { panic("stub") }
