package roots

import (
	"log/slog"
	"sync"

	"github.com/gpucr/gpucr-fs/index/chunks"
)

// Set has the root records of a store, and what names and tags mean. It is safe for concurrent use.
type Set struct {
	chunks *chunks.Store
	o      Options
	log    *slog.Logger
	Hooks  Hooks

	updateMu sync.Mutex // one change of a root record at a time

	mu           sync.Mutex
	roots        map[string]*Root // by id
	names        map[string]*Root // by name; not those being removed
	leaving      map[string]bool  // ids whose records are being deleted
	reserved     string           // a name that a sealed checkpoint is about to have
	drafts       map[string]Draft // by name
	watchers     map[int]func(string)
	nextWatch    int
	damagedRoots map[string]bool // ids whose root record could not be read when the store was opened
}

// Options of a set of roots.
type Options struct {
	Dir       string // of the store
	Logger    *slog.Logger
	FreeFloor int64 // bytes that hot sets leave free
}

// Hooks are for tests.
type Hooks struct {
	Updating chunks.Hook // a root record is about to be replaced
	Removing chunks.Hook // nobody finds a checkpoint any more whose removal is about to be committed
}

// New gives the roots in a store of chunks, which has no other.
func New(c *chunks.Store, o Options) *Set {
	s := &Set{
		chunks: c, o: o, log: o.Logger, roots: map[string]*Root{}, names: map[string]*Root{},
		leaving: map[string]bool{}, drafts: map[string]Draft{}, watchers: map[int]func(string){},
		damagedRoots: map[string]bool{},
	}
	c.SetRoots(s)
	return s
}
