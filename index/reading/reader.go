package reading

import (
	"sync/atomic"
	"time"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/roots"
)

// Reader reads what is sealed. It is safe for concurrent use.
type Reader struct {
	Counts Counters
	Hooks  Hooks

	chunks *chunks.Store
	roots  *roots.Set
	o      Options
	cache  *cache
	parted seenLately // chunks of which ReadInto was asked for a part
	segs   segmentCache
}

// Options of a reader.
type Options struct {
	Dir       string // of the store, for messages
	CacheSize int64  // bytes of decoded chunks kept in memory
	// OnRead, if set, is told every read: how long it took, how many bytes it gave, and whether all came from memory.
	OnRead func(d time.Duration, bytes int64, hit bool)
}

// Counters are live.
type Counters struct {
	Hits, Misses, Read, Fetched, Errors atomic.Int64
}

// Hooks are for tests.
type Hooks struct {
	Located chunks.Hook // a reader knows where a chunk is, and has not read it
}

// New gives a reader of the checkpoints among roots.
func New(c *chunks.Store, r *roots.Set, o Options) *Reader {
	return &Reader{chunks: c, roots: r, o: o, cache: newCache(c.Arena, o.CacheSize)}
}

// DropCache forgets what nobody reads just now, and the rest when it has been read.
func (s *Reader) DropCache() { s.cache.drop() }

// CacheBytes gives the bytes of decoded chunks in memory.
func (s *Reader) CacheBytes() int64 { return s.cache.size() }
