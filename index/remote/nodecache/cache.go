// Package nodecache keeps on this node what was fetched of pack objects, in sparse files: what lies at an offset of an
// object lies at the same offset of its file.
//
// # Reading
//
// ReadSlots gives slots from the file where they are there and right, and fetches the others: those that lie within
// gapBytes of each other with one request, and none that another reader is fetching. A fetched slot is held against its
// guard and, by Object.Verify, against the id of its chunk before it is given or kept; one that is wrong is asked for
// again (fetchOne). What cannot be written to the file is given all the same.
//
// A guard comes from a list, and a list may lie. So a slot from the file is checked against the id as well, once for
// each chunk and place: no list can pass other bytes off as a chunk. What was found is remembered beside the file
// (known.go).
//
// Bring fetches what nobody has asked for yet, for those who will: in large requests, many at once, by a way of its own
// (Options.Ahead), so that a reader who waits for a slot gets a request and a connection at once. A reader who asks for
// what Bring is fetching waits for that.
//
// # What is there
//
// Nothing lists what a file holds. A hole reads as zeros, a stretch that a crash of the machine took reads as anything,
// and a guard tells both from what was written: such a slot is fetched again. So nothing here is ever synced, and the
// folder may be deleted whenever no store has it open.
//
// # How much is kept
//
// What the files occupy is held below Options.Limit by punching out the regions (4 MiB of an object) that nobody has
// read for the longest time. A reader of such a region meanwhile gets zeros, and fetches.
//
// # Lock order
//
// Cache.filesMu, then Cache.knownMu, then Cache.mu. None is held during a fetch.
package nodecache

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/storage"
)

const (
	// gapBytes is how much that nobody wants is fetched along rather than asking twice.
	gapBytes = 1 << 20
	// MaxRequest bounds one request, in bytes. A single slot may be as long.
	MaxRequest = 16 << 20
)

// Source is where pack objects lie.
type Source interface {
	// ReadRange fills p with what lies at off in the object, or fails.
	ReadRange(ctx context.Context, name object.Name, p []byte, off int64) error
}

// Object says what is asked for.
type Object struct {
	Name object.Name
	Size int64 // bytes
	// Verify refuses a slot that does not hold the content of the chunk.
	Verify func(c pack.Chunk, slot []byte) error
}

// Options of a cache. All but Ahead and Sealed must be set.
type Options struct {
	Dir     string // is made when it is not there
	Limit   int64  // bytes of disk that files may occupy together; with 0 nothing is kept, and Dir may not exist
	Floor   int64  // bytes of the file system that are left free
	Storage storage.Storage
	Source  Source
	Ahead   Ahead // nil: what nobody waits for is fetched from Source, too
	Logger  *slog.Logger
	Sealed  bool // slots are encrypted, and kept so
}

// Counters are live.
type Counters struct {
	Hits, Misses      atomic.Int64 // slots
	Requests, Fetched atomic.Int64 // of the source; bytes, gaps included
	Evicted           atomic.Int64 // bytes given back
}

// Cache is the pack objects of one bucket as this node has them. It is safe for concurrent use.
type Cache struct {
	Counts Counters
	o      Options

	knownMu sync.Mutex   // appends to the files that say what was found
	filesMu sync.RWMutex // read: a file is written; write: regions are given back, or files removed

	mu      sync.Mutex
	regions map[place]*region
	recent  list.List // of *region, the one read last in front
	used    int64     // bytes of all regions
	full    bool      // the last slots could not be kept
	waiting map[place]*fetch
	checked map[place]pack.Chunk // the chunk that was last found to lie there
}

// place is a place in an object: the page where a slot begins, or the number of a region.
type place struct {
	name object.Name
	at   uint32
}

// fetch is a slot on its way.
type fetch struct {
	what pack.Chunk
	done chan struct{}
	slot []byte // once done; nil when err is not
	err  error
}

// Open gives the cache in a folder, with what an earlier one left there.
func Open(o Options) (*Cache, error) {
	c := &Cache{o: o, regions: map[place]*region{}, waiting: map[place]*fetch{}, checked: map[place]pack.Chunk{}}
	if o.Limit <= 0 {
		return c, nil
	}
	if _, err := o.Storage.Stat(o.Dir); err != nil {
		if err := o.Storage.Mkdir(o.Dir); err != nil {
			return nil, err
		}
	}
	names, err := o.Storage.List(o.Dir)
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		name, err := object.ParseName(strings.TrimSuffix(n, knownSuffix))
		switch {
		case err != nil:
		case strings.HasSuffix(n, knownSuffix):
			err = c.recall(name)
		default:
			err = c.adopt(name)
		}
		if err != nil {
			o.Logger.Warn("the node's cache cannot use a file", "file", filepath.Join(o.Dir, n), "err", err)
		}
	}
	c.evict()
	return c, nil
}

// Used gives the bytes of disk that the files occupy.
func (c *Cache) Used() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

// check refuses what is not in the object.
func (o Object) check(list []pack.Chunk) error {
	for _, c := range list {
		l := c.Loc
		if l.Stored == 0 || l.Offset()+l.Slot() > o.Size {
			return fmt.Errorf("pack object %s of %d bytes: %w: a slot of %d bytes at %d", o.Name, o.Size,
				pack.ErrCorrupt, l.Slot(), l.Offset())
		}
	}
	return nil
}

// ReadSlots gives slots of an object, in ascending order, each into a buffer with a capacity of the slot's length; errs
// tells for each what is wrong with it. past reads around the page cache. What the source says is passed on as it is; a
// slot that is not what it should be wraps pack.ErrCorrupt.
func (c *Cache) ReadSlots(ctx context.Context, o Object, list []pack.Chunk, bufs [][]byte, past bool) (errs []error) {
	if err := o.check(list); err != nil {
		return slices.Repeat([]error{err}, len(list))
	}
	errs = make([]error, len(list))
	for i, x := range list {
		bufs[i] = bufs[i][:x.Loc.Slot()]
	}
	absent := c.readKept(o, list, bufs, past)
	c.Counts.Hits.Add(int64(len(list) - len(absent)))
	c.Counts.Misses.Add(int64(len(absent)))
	mine, others, kept := c.claim(o.Name, list, absent)
	for _, i := range kept {
		if len(c.readKept(o, list[i:i+1], bufs[i:i+1], past)) > 0 {
			errs[i] = c.fetchOne(ctx, o, list[i], bufs[i])
		}
	}
	for len(mine) > 0 {
		n := together(list, mine)
		c.fetch(ctx, o, list, bufs, errs, mine[:n], false)
		mine = mine[n:]
	}
	for i, f := range others {
		select {
		case <-f.done:
			errs[i] = f.err
			switch {
			case f.err == nil && f.what == list[i]:
				copy(bufs[i], f.slot)
			case f.what != list[i]: // something else was looked for there
				errs[i] = c.fetchOne(ctx, o, list[i], bufs[i])
			}
		case <-ctx.Done():
			errs[i] = ctx.Err()
		}
	}
	return errs
}

// claim says which of the absent slots the caller is to fetch, which are on their way, and which have come since.
func (c *Cache) claim(
	name object.Name, list []pack.Chunk, absent []int,
) (mine []int, others map[int]*fetch, kept []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range absent {
		at := place{name, list[i].Loc.Page}
		if f := c.waiting[at]; f != nil {
			if others == nil {
				others = map[int]*fetch{}
			}
			others[i] = f
			continue
		}
		if c.checked[at] == list[i] {
			kept = append(kept, i)
			continue
		}
		c.waiting[at] = &fetch{what: list[i], done: make(chan struct{})}
		mine = append(mine, i)
	}
	return mine, others, kept
}

// together gives how many of the slots go into one request.
func together(list []pack.Chunk, mine []int) int {
	n := 1
	first := list[mine[0]].Loc.Offset()
	for end := first + list[mine[0]].Loc.Slot(); n < len(mine); n++ {
		l := list[mine[n]].Loc
		if l.Offset() < end || l.Offset()-end > gapBytes || l.Offset()+l.Slot()-first > MaxRequest {
			break
		}
		end = l.Offset() + l.Slot()
	}
	return n
}

// fetch brings slots with one request, and tells those who wait for them. bufs may be nil. ahead: nobody has asked for
// them yet.
func (c *Cache) fetch(
	ctx context.Context, o Object, list []pack.Chunk, bufs [][]byte, errs []error, mine []int, ahead bool,
) {
	first, last := list[mine[0]].Loc, list[mine[len(mine)-1]].Loc
	b := make([]byte, last.Offset()+last.Slot()-first.Offset())
	c.Counts.Requests.Add(1)
	read := c.o.Source.ReadRange
	if ahead && c.o.Ahead != nil {
		read = c.o.Ahead.ReadAhead
	}
	err := read(ctx, o.Name, b, first.Offset())
	if err == nil {
		c.Counts.Fetched.Add(int64(len(b)))
	}
	good := make([]pack.Chunk, 0, len(mine))
	slots := make([][]byte, 0, len(mine))
	for _, i := range mine {
		l := list[i].Loc
		slot := b[l.Offset()-first.Offset():][:l.Slot()]
		if errs[i] = err; err == nil && o.examine(list[i], slot) != nil {
			errs[i] = c.fetchOne(ctx, o, list[i], slot)
		}
		if errs[i] == nil {
			if bufs != nil {
				copy(bufs[i], slot)
			}
			good, slots = append(good, list[i]), append(slots, slot)
		}
	}
	c.keep(o, good, slots)
	for _, i := range mine {
		l := list[i].Loc
		c.settle(place{o.Name, l.Page}, b[l.Offset()-first.Offset():][:l.Slot()], errs[i])
	}
	c.evict()
}

// A slot that is wrong is asked for again, so often, after pauses that double: about 12 s in all.
const (
	mostTries  = 9
	firstPause = 50 * time.Millisecond
)

// fetchOne brings a slot for one reader alone. One that is wrong, and the next time wrong in another way, was altered
// on its way, which may pass; one that is wrong twice in the same way lies there so.
func (c *Cache) fetchOne(ctx context.Context, o Object, x pack.Chunk, buf []byte) error {
	var before uint32
	for n := range mostTries {
		c.Counts.Requests.Add(1)
		if err := c.o.Source.ReadRange(ctx, o.Name, buf, x.Loc.Offset()); err != nil {
			return err
		}
		c.Counts.Fetched.Add(int64(len(buf)))
		err := o.examine(x, buf)
		sum := crc32c.Checksum(buf)
		if err == nil || n > 0 && sum == before || n == mostTries-1 {
			return err
		}
		before = sum
		select {
		case <-time.After(firstPause << n):
		case <-ctx.Done():
			return err
		}
	}
	return nil
}

// right says whether a slot is what its guard says.
func right(l pack.Loc, slot []byte) bool { return crc32c.Checksum(slot) == l.CRC }

// examine refuses a slot that is not what was asked for.
func (o Object) examine(c pack.Chunk, slot []byte) error {
	if l := c.Loc; !right(l, slot) {
		return fmt.Errorf("pack object %s at %d: %w: wrong checksum", o.Name, l.Offset(), pack.ErrCorrupt)
	}
	return o.Verify(c, slot)
}

// settle ends a fetch. The slot is not written to any more: those who wait copy it.
func (c *Cache) settle(at place, slot []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.waiting[at]
	delete(c.waiting, at)
	if f.err = err; err == nil {
		f.slot = slot
	}
	close(f.done)
}

func isMissing(err error) bool { return errors.Is(err, os.ErrNotExist) }
