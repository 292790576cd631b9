package drafts

import (
	"io/fs"
	"log/slog"
	"sync/atomic"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/reading"
	"github.com/gpucr/gpucr-fs/index/roots"
	"github.com/gpucr/gpucr-fs/index/unsealed"
)

// Writer begins drafts. It is safe for concurrent use.
type Writer struct {
	Counts Counters
	Hooks  Hooks

	chunks  *chunks.Store
	roots   *roots.Set
	reading *reading.Reader
	o       Options
}

// Options of a writer.
type Options struct {
	Logger *slog.Logger
	Params chunk.Params // where files are cut
	Policy chunk.Policy // how chunks are stored
	// Cuts, if set, is asked when a draft is about to be sealed where else its files must be cut: offsets by path,
	// ascending.
	Cuts func(fsys fs.FS) (map[string][]int64, error)
	// Labels, if set, is asked before a checkpoint is sealed what its files tell about the processes in it.
	Labels   func(fsys fs.FS) map[string]string
	Unsealed *unsealed.Drafts // is told what drafts have stored before they are sealed
}

// Counters are live.
type Counters struct {
	Written, Zero atomic.Int64
}

// Hooks are for tests.
type Hooks struct {
	Sealing chunks.Hook // the files of a draft are in their manifests, the root record is not written
}

// New gives a writer of checkpoints that r reads.
func New(c *chunks.Store, s *roots.Set, r *reading.Reader, o Options) *Writer {
	return &Writer{chunks: c, roots: s, reading: r, o: o}
}
