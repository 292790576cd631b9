package reading

import (
	"container/list"
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/gpucr/gpucr-fs/index/arena"
	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/keys"
)

// cache keeps decoded chunks, least recently used ones leaving first. Entries in use are never evicted; while they
// alone exceed the bound, so does the cache.
type cache struct {
	arena *arena.Arena

	mu      sync.Mutex
	entries map[chunk.ID]*entry
	lru     list.List // of *entry with no user; front is the most recent
	bytes   int64
	limit   int64
}

// entry is one chunk: being fetched until done is closed, then with data or err. refs, elem belong to cache.mu; the
// rest is written before done closes.
type entry struct {
	id   chunk.ID
	done chan struct{}
	data []byte
	err  error
	refs int
	elem *list.Element
	gone bool // no longer in entries: the last user frees it
}

func newCache(a *arena.Arena, limit int64) *cache {
	return &cache{arena: a, entries: map[chunk.ID]*entry{}, limit: limit}
}

// acquire gives the entry of id with a reference for the caller. owner says that the caller must fetch it and call
// fill; everyone else waits.
func (c *cache) acquire(id chunk.ID) (e *entry, owner bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.use(id); e != nil {
		return e, false
	}
	e = &entry{id: id, done: make(chan struct{}), refs: 1}
	c.entries[id] = e
	return e, true
}

// lookup gives the entry of id, fetched or being fetched, with a reference for the caller, if there is one.
func (c *cache) lookup(id chunk.ID) (e *entry, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e = c.use(id)
	return e, e != nil
}

// use takes a reference to the entry of id, if there is one. Call with mu held.
func (c *cache) use(id chunk.ID) *entry {
	e := c.entries[id]
	if e == nil {
		return nil
	}
	e.refs++
	if e.elem != nil {
		c.lru.Remove(e.elem)
		e.elem = nil
	}
	return e
}

// fill ends the fetch of an entry the caller owns. data comes from the arena and passes to the cache. A failed
// entry is forgotten, so that the next reader tries anew.
func (c *cache) fill(e *entry, data []byte, err error) {
	c.mu.Lock()
	e.data, e.err = data, err
	if err != nil {
		delete(c.entries, e.id)
		e.gone = true
	} else {
		c.bytes += int64(cap(data))
	}
	victims := c.evict()
	c.mu.Unlock()
	close(e.done)
	for _, v := range victims {
		c.arena.Put(v.data)
	}
}

// evict takes entries off until the bound holds. Call with mu held; free their data without it.
func (c *cache) evict() (victims []*entry) {
	for c.bytes > c.limit && c.lru.Len() > 0 {
		e := c.lru.Remove(c.lru.Back()).(*entry)
		e.elem = nil
		delete(c.entries, e.id)
		c.bytes -= int64(cap(e.data))
		victims = append(victims, e)
	}
	return victims
}

// content waits for an acquired entry and gives its bytes. They are want bytes: what one manifest says of a chunk
// need not be what another one did, which had it fetched.
func (e *entry) content(ctx context.Context, want uint32) ([]byte, error) {
	if err := e.wait(ctx); err != nil {
		return nil, err
	}
	if len(e.data) != int(want) {
		return nil, fmt.Errorf("%w: chunk of %d bytes, not %d", keys.ErrDamaged, len(e.data), want)
	}
	return e.data, nil
}

// wait waits for an acquired entry and gives its error.
func (e *entry) wait(ctx context.Context) error {
	select {
	case <-e.done:
		return e.err
	default:
	}
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// release gives a reference back.
func (c *cache) release(e *entry) {
	c.mu.Lock()
	e.refs--
	var victims []*entry
	if e.refs == 0 {
		if e.gone {
			if e.err == nil {
				c.bytes -= int64(cap(e.data))
				victims = append(victims, e)
			}
		} else {
			e.elem = c.lru.PushFront(e)
			victims = c.evict()
		}
	}
	c.mu.Unlock()
	for _, v := range victims {
		c.arena.Put(v.data)
	}
}

// drop forgets everything no one uses, and the rest when its users are done.
func (c *cache) drop() {
	c.mu.Lock()
	limit := c.limit
	c.limit = 0
	victims := c.evict()
	c.limit = limit
	for id, e := range c.entries {
		select {
		case <-e.done:
			e.gone = true
			delete(c.entries, id)
		default:
		}
	}
	c.mu.Unlock()
	for _, v := range victims {
		c.arena.Put(v.data)
	}
}

func (c *cache) size() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}

// seenLately remembers chunks for a while: a new one takes the place of an older.
type seenLately [1024]atomic.Uint64

// again enters id, and reports whether it was there.
func (r *seenLately) again(id chunk.ID) bool {
	tag := binary.LittleEndian.Uint64(id[:])
	return r[tag%uint64(len(r))].Swap(tag) == tag
}
