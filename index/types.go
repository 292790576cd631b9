package index

import (
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"runtime"
	"time"

	"github.com/gpucr/gpucr-fs/index/accounting"
	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/distant"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keyring"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/reading"
	"github.com/gpucr/gpucr-fs/index/repair"
	"github.com/gpucr/gpucr-fs/index/roots"
	"github.com/gpucr/gpucr-fs/index/storage"
	"github.com/gpucr/gpucr-fs/index/upkeep"
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
	// Encryption says how content and metadata are encrypted, "" for a plain store; see encryption.go.
	Encryption string `json:"encryption,omitempty"`
}

// Options of an open store. The zero value is usable.
type Options struct {
	// Logger takes what an administrator should see: damage found, recovery done. Default: discards.
	Logger *slog.Logger
	// CacheSize bounds the bytes of decoded chunks kept in memory. Default 128 MiB.
	CacheSize int64
	// Workers bounds the goroutines that hash, compress and read. Default: one a core.
	Workers int
	// FreeFloor is the space in bytes below which writes fail with NoSpace, so that the index never meets a full disk.
	// Default 256 MiB.
	FreeFloor int64
	// Compression overrides the store's default for chunks written from now on.
	Compression Compression
	// Cuts, if set, is asked when a draft is about to be sealed where else its files must be cut: offsets by path,
	// ascending. Content that two files share is then found even where other content surrounds it. The view is valid
	// during the call. An error is logged and changes nothing.
	Cuts func(fsys fs.FS) (map[string][]int64, error)
	// Labels, if set, is asked before a checkpoint is sealed what its files tell about the processes in it; see
	// [Store.Label]. The view is valid during the call. What was set by hand stays.
	Labels func(fsys fs.FS) map[string]string
	// OnRead, if set, is told every read of a sealed file: how long it took, how many bytes it gave, and whether all
	// came from memory.
	OnRead func(d time.Duration, bytes int64, hit bool)
	// Distant, if set, gives the payload of packs that lie in a bucket; see [Store.Pull].
	Distant distant.Source
	// DistantTimeout is how long a reader waits for a bucket that gives nothing, for the one who makes Distant; 0: its
	// default.
	DistantTimeout time.Duration
	// Access says how the key of an encrypted store is unwrapped.
	Access keyring.Access
	// Unlocked, if set, is given what encrypts in an encrypted store, when it is opened.
	Unlocked func(*cipher.Coder)
	// Daemon: the process is a daemon, and is named as one to those who find the store held; see [ErrDaemonHolds].
	Daemon bool
	// ReadOnly opens the store for reading only, beside others who do: see readonly.go. What writes fails with Class
	// ReadOnly.
	ReadOnly bool
	// Storage has the files of the store but those of its index, which lie on the disk at the same path. Default: the
	// disk.
	Storage storage.Storage
	// Tuning moves thresholds; for tests.
	Tuning Tuning

	coder *cipher.Coder // of an encrypted store; see unlock
}

// Tuning are thresholds that only tests move, to where small stores meet them. Zero values stand for the defaults.
type Tuning struct {
	CommitEvery   int64            // bytes appended between two commits while nothing is sealed; default CommitEvery
	ShrinkJournal int64            // bytes from which on gc looks at what a journal still tells; default 1 MiB
	IngestWorkers int              // goroutines that hash, compress and append; default two a core
	IndexMemory   int64            // bytes that the index gathers in memory before it writes a table; default 8 MiB
	IndexSynced   func(dir string) // called after the index in dir was synced
	IndexWrote    func(dir string) // called after something was written to it, which is not synced yet
	Cipher        cipher.Hooks     // of an encrypted store
}

// keys are the options of the index.
func (o *Options) keys() keys.Tuning {
	t := o.Tuning
	return keys.Tuning{Coder: o.coder, Memory: t.IndexMemory, Synced: t.IndexSynced, Wrote: t.IndexWrote}
}

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
		return &fault.Error{Class: fault.Invalid, Op: "options",
			Err: fmt.Errorf("cache size, workers and free floor must not be negative")}
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
	return &fault.Error{Class: fault.Invalid, Op: "options", Err: fmt.Errorf("unknown compression %q", string(c)),
		Hint: "use auto, zstd, s2 or none"}
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
	CompressAuto: chunk.PolicyAuto, CompressZstd: chunk.PolicyZstd, CompressS2: chunk.PolicyS2,
	CompressNone: chunk.PolicyNone,
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

// TimeNS gives a time in nanoseconds since 1970, as checkpoints keep it. That covers the years 1678 to 2261; for any
// other time it gives the nearest one that is covered, and false.
func TimeNS(t time.Time) (ns int64, ok bool) {
	switch {
	case t.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64, false
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64, false
	}
	return t.UnixNano(), true
}

// Why a checkpoint is not removed that is kept, and what to do; see [roots.WhyKept].
const (
	WhyKept  = roots.WhyKept
	HintKept = roots.HintKept
)

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

// GCOptions of one collection; see [upkeep.GCOptions].
type GCOptions = upkeep.GCOptions

// GCResult says what a collection found and gave back; see [upkeep.GCResult].
type GCResult = upkeep.GCResult

// OptimizeOptions of one optimization; see [upkeep.OptimizeOptions].
type OptimizeOptions = upkeep.OptimizeOptions

// OptimizeResult says what an optimization did; see [upkeep.OptimizeResult].
type OptimizeResult = upkeep.OptimizeResult

// VerifyOptions of one verification; see [upkeep.VerifyOptions].
type VerifyOptions = upkeep.VerifyOptions

// VerifyResult is what a verification saw; see [upkeep.VerifyResult].
type VerifyResult = upkeep.VerifyResult

// Problem is one piece of damage; see [upkeep.Problem].
type Problem = upkeep.Problem

// Usage is the whole store's accounting; see [accounting.Usage].
type Usage = accounting.Usage

// RepairResult says what a rebuild of the index brought back; see [repair.Result].
type RepairResult = repair.Result
