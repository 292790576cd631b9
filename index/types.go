package index

import (
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"runtime"
	"time"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/reading"
	"github.com/gpucr/gpucr-fs/index/roots"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// Compression says how new chunks are stored. Old chunks keep the codec they were stored with.
type Compression string

const (
	// CompressAuto probes each chunk and compresses it only where that pays at least an eighth.
	CompressAuto Compression = "auto"
	// CompressZstd tries zstd on every chunk.
	CompressZstd Compression = "zstd"
	// CompressS2 tries s2 on every chunk: less saved, faster to read.
	CompressS2 Compression = "s2"
	// CompressNone stores every chunk as it is in memory.
	CompressNone Compression = "none"
)

// Config is what config.json of a store holds; it is fixed when the store is made.
type Config struct {
	Format      int          `json:"format"`      // version of the on-disk format
	ID          string       `json:"id"`          // random identity of the store, hex
	Created     time.Time    `json:"created"`     // UTC
	Compression Compression  `json:"compression"` // default for new chunks
	Chunk       chunk.Params `json:"chunk"`       // where files are cut
	PackSize    int64        `json:"pack_size"`   // bytes at which a new pack is begun
}

// Options of an open store. The zero value is usable.
type Options struct {
	// Logger takes what an administrator should see: damage found, recovery done. Default: discards.
	Logger *slog.Logger
	// CacheSize bounds the bytes of decoded chunks kept in memory. Default 128 MiB.
	CacheSize int64
	// Workers bounds the goroutines that hash, compress and read. Default: one a core.
	Workers int
	// FreeFloor is the space in bytes below which writes fail with NoSpace, so that the index never meets a full disk. Default 256 MiB.
	FreeFloor int64
	// Compression overrides the store's default for chunks written from now on.
	Compression Compression
	// Cuts, if set, is asked when a draft is about to be sealed where else its files must be cut: offsets by path, ascending. What two files have in common is then found
	// though it lies between other things in each. The view is valid during the call. An error is logged and changes nothing.
	Cuts func(fsys fs.FS) (map[string][]int64, error)
	// Labels, if set, is asked before a checkpoint is sealed what its files tell about the processes in it; see [Store.Label]. The view is valid during the call. What
	// was set by hand stays.
	Labels func(fsys fs.FS) map[string]string
	// OnRead, if set, is told every read of a sealed file: how long it took, how many bytes it gave, and whether all came from memory.
	OnRead func(d time.Duration, bytes int64, hit bool)
	// ReadOnly opens the store for reading only, beside others who do: see readonly.go. What writes fails with Class ReadOnly.
	ReadOnly bool
	// Storage has the files of the store but those of its index, which lie on the disk at the same path. Default: the disk.
	Storage storage.Storage
	// Tuning moves thresholds; for tests.
	Tuning Tuning
}

// Tuning are thresholds that only tests move, to where small stores meet them. Zero values stand for the defaults.
type Tuning struct {
	CommitEvery   int64            // bytes appended between two commits while nothing is sealed; default CommitEvery
	ShrinkJournal int64            // bytes from which on gc looks at what a journal still tells; default 1 MiB
	IngestWorkers int              // goroutines that hash, compress and append; default two a core
	IndexMemory   int64            // bytes that the index gathers in memory before it writes a table; default 8 MiB
	IndexSynced   func(dir string) // called after the index in dir was synced
}

func (t Tuning) keys() keys.Tuning { return keys.Tuning{Memory: t.IndexMemory, Synced: t.IndexSynced} }

func (t *Tuning) setDefaults(workers int) {
	if t.CommitEvery == 0 {
		t.CommitEvery = chunks.CommitEvery
	}
	if t.ShrinkJournal == 0 {
		t.ShrinkJournal = 1 << 20
	}
	if t.IngestWorkers == 0 {
		// While one waits for the disk the other hashes.
		t.IngestWorkers = 2 * workers
	}
}

func (o *Options) setDefaults(c Config) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.CacheSize == 0 {
		o.CacheSize = 128 << 20
	}
	if o.Workers == 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.FreeFloor == 0 {
		o.FreeFloor = 256 << 20
	}
	if o.Compression == "" {
		o.Compression = c.Compression
	}
	o.setStorage()
	o.Tuning.setDefaults(o.Workers)
}

func (o *Options) setStorage() {
	if o.Storage == nil {
		o.Storage = storage.Disk{}
	}
}

// Validate refuses options that cannot be meant.
func (o *Options) Validate() error {
	if o.CacheSize < 0 || o.Workers < 0 || o.FreeFloor < 0 {
		return &fault.Error{Class: fault.Invalid, Op: "options", Err: fmt.Errorf("cache size, workers and free floor must not be negative")}
	}
	return o.Compression.validate(true)
}

func (c Compression) validate(emptyOK bool) error {
	switch c {
	case CompressAuto, CompressZstd, CompressS2, CompressNone:
		return nil
	case "":
		if emptyOK {
			return nil
		}
	}
	return &fault.Error{Class: fault.Invalid, Op: "options", Err: fmt.Errorf("unknown compression %q", string(c)), Hint: "use auto, zstd, s2 or none"}
}

// Usage is the whole store's accounting.
type Usage struct {
	Checkpoints []roots.Info `json:"checkpoints"`
	Logical     int64        `json:"logical"`      // sum over checkpoints
	Zero        int64        `json:"zero"`         // of which zero runs
	Distinct    int64        `json:"distinct"`     // bytes of distinct live chunks before compression
	Stored      int64        `json:"stored"`       // what those occupy in packs
	Disk        int64        `json:"disk"`         // bytes the store folder occupies on disk, index and journals included
	Reclaimable int64        `json:"reclaimable"`  // what gc would give back now
	Chunks      int64        `json:"chunks"`       // distinct live chunks
	Packs       int          `json:"packs"`        // pack files
	DedupeRatio float64      `json:"dedupe_ratio"` // Logical over Stored
}

// GCOptions of one collection.
type GCOptions struct {
	DryRun   bool
	Progress func(done, total int64) // packs
}

// GCResult says what a collection found and gave back. In a dry run Reclaimed is 0 and nothing was changed.
type GCResult struct {
	Reclaimable int64    `json:"reclaimable"` // bytes of disk that dead payload occupies
	Reclaimed   int64    `json:"reclaimed"`   // bytes given back to the file system
	DeadChunks  int64    `json:"dead_chunks"`
	LiveChunks  int64    `json:"live_chunks"`
	PacksGone   int      `json:"packs_dropped"`
	Incomplete  []string `json:"incomplete"`     // checkpoints of dead writers, removed
	Kept        []string `json:"kept,omitempty"` // packs left alone: their journals do not tell all that they hold
}

// OptimizeOptions of one optimization.
type OptimizeOptions struct {
	DryRun   bool                    // encode and count, and write nothing
	Rate     int64                   // bytes a second read at most; 0 is no bound
	Busy     func() bool             // whether somebody else should have the machine; nil: nobody
	Progress func(done, total int64) // bytes of payload looked at
}

// OptimizeResult says what an optimization did. In a dry run it says what one would do.
type OptimizeResult struct {
	Chunks    int64 `json:"chunks"`    // stored fast or not compressed, in use
	Rewritten int64 `json:"rewritten"` // of these, stored anew smaller
	Skipped   int64 `json:"skipped"`   // of these, left as they are: no smaller, damaged, or changed meanwhile
	Damaged   int64 `json:"damaged"`   // of the skipped, unreadable: verify names what needs them
	Before    int64 `json:"before"`    // bytes of disk that the rewritten ones took
	After     int64 `json:"after"`     // bytes that they take now; gc gives the rest back
}

// VerifyOptions of one verification.
type VerifyOptions struct {
	Names    []string                // checkpoints; all sealed ones when empty
	Subset   float64                 // share of the payload to read, 0 < Subset <= 1; 0 means 1
	Progress func(done, total int64) // bytes of stored payload
	Rate     int64                   // bytes of stored payload read in a second; 0 is no bound
	Resume   bool                    // go on with a verification of the whole store that was interrupted, if any
}

// Problem is one piece of damage. Checkpoint and File are set when a sealed file is concerned.
type Problem struct {
	Checkpoint string `json:"checkpoint,omitempty"`
	File       string `json:"file,omitempty"`
	Offset     int64  `json:"offset"`
	Pack       string `json:"pack,omitempty"`
	Text       string `json:"text"`
}

// VerifyResult is what a verification saw. The store is sound when Problems is empty.
type VerifyResult struct {
	Checkpoints int               `json:"checkpoints"`
	Chunks      int64             `json:"chunks"`
	Bytes       int64             `json:"bytes"` // stored payload read and checked
	Problems    []Problem         `json:"problems"`
	SetAside    []chunks.SetAside `json:"set_aside,omitempty"` // what is kept without being accounted for
	Begun       time.Time         `json:"begun,omitzero"`      // where it went on with another one: when that began
	Earlier     int64             `json:"earlier,omitempty"`   // bytes that the other one had read and checked
}

// RepairResult says what a rebuild of the index brought back.
type RepairResult struct {
	Checkpoints int               `json:"checkpoints"`
	Chunks      int64             `json:"chunks"`
	Packs       int               `json:"packs"`
	Lost        []string          `json:"lost"`                // checkpoints that could not be brought back, with the reason
	SetAside    []chunks.SetAside `json:"set_aside,omitempty"` // what is kept without being accounted for
}

// Stats are counters since the store was opened.
type Stats struct {
	Hits         int64 `json:"hits"`          // chunk reads answered from memory
	Misses       int64 `json:"misses"`        // chunk reads that went to a pack
	BytesRead    int64 `json:"bytes_read"`    // delivered to readers
	BytesFetched int64 `json:"bytes_fetched"` // read from packs
	BytesWritten int64 `json:"bytes_written"` // taken from writers
	BytesStored  int64 `json:"bytes_stored"`  // payload appended to packs
	ChunksNew    int64 `json:"chunks_new"`    // stored
	ChunksDup    int64 `json:"chunks_dup"`    // found stored already
	ZeroBytes    int64 `json:"zero_bytes"`    // recognised as zero runs
	CacheBytes   int64 `json:"cache_bytes"`   // decoded chunks in memory now
	Errors       int64 `json:"errors"`        // reads that failed
	OpenDrafts   int64 `json:"open_drafts"`   // checkpoints being written
	FreeBytes    int64 `json:"free_bytes"`    // left on the store's file system
}

var policies = map[Compression]chunk.Policy{
	CompressAuto: chunk.PolicyAuto, CompressZstd: chunk.PolicyZstd, CompressS2: chunk.PolicyS2, CompressNone: chunk.PolicyNone,
}

// Info describes one checkpoint; see [roots.Info].
type Info = roots.Info

// State of a checkpoint.
type State = roots.State

// The states, as [roots.State] tells of them.
const (
	Sealed     = roots.Sealed
	Writing    = roots.Writing
	Incomplete = roots.Incomplete
)

// TimeNS gives a time in nanoseconds since 1970, as checkpoints keep it. Where it lies outside of what that can say, the
// years 1678 to 2261, it gives the nearest that does, and false.
func TimeNS(t time.Time) (ns int64, ok bool) {
	switch {
	case t.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64, false
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64, false
	}
	return t.UnixNano(), true
}

// ValidName refuses what cannot name a checkpoint or tag; see [roots.ValidName].
func ValidName(name string) error { return roots.ValidName(name) }

// ValidLabel refuses what cannot be a label; see [roots.ValidLabel].
func ValidLabel(key, value string) error { return roots.ValidLabel(key, value) }

// Checkpoint is a sealed checkpoint; see [reading.Checkpoint].
type Checkpoint = reading.Checkpoint

// File is an open regular file of a sealed checkpoint; see [reading.File].
type File = reading.File

// Slices are borrowed, read-only buffers; see [reading.Slices].
type Slices = reading.Slices

// FileInfo describes one entry of a checkpoint; see [reading.FileInfo].
type FileInfo = reading.FileInfo

// Extent is a run of a file with one source; see [reading.Extent].
type Extent = reading.Extent

// FileDiff says what one file of two checkpoints has in common; see [reading.FileDiff].
type FileDiff = reading.FileDiff

// Draft is a checkpoint being written; see [drafts.Draft].
type Draft = drafts.Draft

// DraftFile is an open file of a Draft; see [drafts.DraftFile].
type DraftFile = drafts.DraftFile

// CreateOptions of a new checkpoint; see [drafts.CreateOptions].
type CreateOptions = drafts.CreateOptions

// Attr are changes of metadata; see [drafts.Attr].
type Attr = drafts.Attr
