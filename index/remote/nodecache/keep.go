package nodecache

import (
	"container/list"
	"errors"
	"os"
	"path/filepath"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// regionBytes is what is given back at a time: a slot belongs to the region where it begins.
const regionBytes = 4 << 20

// region is a stretch of regionBytes of an object, of which something is kept.
type region struct {
	place
	bytes  int64 // that it occupies, at most: what was written twice counts twice
	listed *list.Element
}

func regionOf(l pack.Loc) uint32 { return uint32(l.Offset() / regionBytes) }

func (c *Cache) path(name object.Name) string { return filepath.Join(c.o.Dir, name.String()) }

// plain says whether there is a file for an object. What is none goes: a pipe would hold a reader up, a link lead
// elsewhere.
func (c *Cache) plain(name object.Name) bool {
	st, err := c.o.Storage.Stat(c.path(name))
	if err == nil && (st.Odd || st.Dir) {
		err = errOdd
		if rerr := c.o.Storage.Remove(c.path(name)); rerr != nil {
			c.o.Logger.Warn("the node's cache holds what is no file", "file", c.path(name), "err", rerr)
		}
	}
	return err == nil
}

var errOdd = errors.New("no file")

// adopt takes over the file of an object from an earlier cache.
func (c *Cache) adopt(name object.Name) error {
	if !c.plain(name) {
		return errOdd
	}
	f, err := c.o.Storage.Open(c.path(name), storage.Read)
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil || size > object.MaxPack {
		return errors.Join(err, f.Close(), c.o.Storage.Remove(c.path(name)))
	}
	for off := int64(0); off < size; off += regionBytes {
		n, err := f.Allocated(off, min(regionBytes, size-off))
		if err != nil {
			return err
		}
		if n > 0 {
			c.grow(place{name, uint32(off / regionBytes)}, n)
		}
	}
	return nil
}

// readKept reads what is kept, and gives the places of the others in locs.
func (c *Cache) readKept(o Object, list []pack.Chunk, bufs [][]byte, past bool) (absent []int) {
	how := storage.Read
	if past {
		how |= storage.Direct
	}
	var f storage.File
	err := errOdd
	if c.plain(o.Name) {
		f, err = c.o.Storage.Open(c.path(o.Name), how)
	}
	if err != nil {
		for i := range list {
			absent = append(absent, i)
		}
		c.uncheck(o.Name, list, absent)
		return absent
	}
	defer f.Close()
	for from := 0; from < len(list); {
		to := from + behind(list[from:])
		err := f.Readv(bufs[from:to], list[from].Loc.Offset(), past)
		for i := from; i < to; i++ {
			if err != nil { // one of them cannot be read: the others shall not suffer
				one := f.Readv(bufs[i:i+1], list[i].Loc.Offset(), past)
				if one != nil {
					absent = append(absent, i)
					continue
				}
			}
			if !right(list[i].Loc, bufs[i]) || !c.isChecked(o, list[i], bufs[i]) {
				absent = append(absent, i)
			}
		}
		from = to
	}
	if len(absent) < len(list) {
		c.touch(o.Name, list)
	}
	c.uncheck(o.Name, list, absent)
	return absent
}

// isChecked says whether a slot of the file holds the content of a chunk, and looks where nobody has.
func (c *Cache) isChecked(o Object, x pack.Chunk, slot []byte) bool {
	at := place{o.Name, x.Loc.Page}
	c.mu.Lock()
	known := c.checked[at] == x
	c.mu.Unlock()
	if known {
		return true
	}
	if o.Verify(x, slot) != nil {
		return false
	}
	c.check(at, x)
	c.remember(o.Name, []pack.Chunk{x})
	return true
}

// check notes that a chunk was found to lie at a place.
func (c *Cache) check(at place, x pack.Chunk) {
	c.mu.Lock()
	c.checked[at] = x
	c.mu.Unlock()
}

// uncheck notes that it was not.
func (c *Cache) uncheck(name object.Name, list []pack.Chunk, absent []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range absent {
		if at := (place{name, list[i].Loc.Page}); c.checked[at] == list[i] {
			delete(c.checked, at)
		}
	}
}

// keep writes slots to the file of their object. What it cannot write is fetched again the next time.
func (c *Cache) keep(o Object, list []pack.Chunk, slots [][]byte) {
	if len(list) == 0 || c.o.Limit <= 0 {
		return
	}
	if free, err := c.o.Storage.Free(c.o.Dir); err == nil && free < c.o.Floor {
		c.evictOldest(0)
		c.mu.Lock()
		c.full = true
		c.mu.Unlock()
		return
	}
	c.filesMu.RLock()
	err := c.write(o, list, slots)
	c.filesMu.RUnlock()
	c.mu.Lock()
	told := c.full
	c.full = err != nil
	c.mu.Unlock()
	if err != nil && !told {
		c.o.Logger.Warn("what was fetched cannot be kept, and is fetched each time", "folder", c.o.Dir, "err", err)
	}
}

func (c *Cache) write(o Object, list []pack.Chunk, slots [][]byte) error {
	path := c.path(o.Name)
	c.plain(o.Name)
	f, err := c.o.Storage.Open(path, storage.Write)
	if isMissing(err) {
		if _, err := c.o.Storage.Stat(c.o.Dir); isMissing(err) { // somebody has emptied it
			c.o.Storage.Mkdir(c.o.Dir)
		}
		if f, err = c.o.Storage.Open(path, storage.Create); errors.Is(err, os.ErrExist) { // made meanwhile
			f, err = c.o.Storage.Open(path, storage.Write)
		} else if err == nil {
			err = f.Truncate(o.Size) // a run that is there in part is read as a whole
		}
	}
	if f != nil {
		defer f.Close()
	}
	if err != nil {
		return err
	}
	for from := 0; from < len(list); {
		to := from + behind(list[from:])
		if err := f.Writev(slots[from:to], list[from].Loc.Offset(), false); err != nil {
			return err
		}
		for _, x := range list[from:to] {
			c.grow(place{o.Name, regionOf(x.Loc)}, x.Loc.Slot())
			c.check(place{o.Name, x.Loc.Page}, x)
		}
		from = to
	}
	c.remember(o.Name, list)
	return nil
}

// behind gives how many slots lie one behind the other, from the first on.
func behind(list []pack.Chunk) int {
	n := 1
	for n < len(list) && list[n].Loc.Offset() == list[n-1].Loc.Offset()+list[n-1].Loc.Slot() {
		n++
	}
	return n
}

// grow notes that more of a region is kept.
func (c *Cache) grow(p place, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.regions[p]
	if r == nil {
		r = &region{place: p}
		r.listed = c.recent.PushFront(r)
		c.regions[p] = r
	}
	r.bytes += n
	c.used += n
}

// touch notes that slots were read.
func (c *Cache) touch(name object.Name, list []pack.Chunk) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := ^uint32(0)
	for _, x := range list {
		if n := regionOf(x.Loc); n != last {
			last = n
			if r := c.regions[place{name, n}]; r != nil {
				c.recent.MoveToFront(r.listed)
			}
		}
	}
}

// evict gives regions back until what is kept is below the limit.
func (c *Cache) evict() {
	for {
		c.mu.Lock()
		over := c.used > c.o.Limit && c.recent.Len() > 0
		c.mu.Unlock()
		if !over {
			return
		}
		c.evictOldest(c.o.Limit)
	}
}

// evictOldest gives a region back if more than limit bytes are kept.
func (c *Cache) evictOldest(limit int64) {
	c.filesMu.Lock()
	defer c.filesMu.Unlock()
	c.mu.Lock()
	e := c.recent.Back()
	if e == nil || c.used <= limit {
		c.mu.Unlock()
		return
	}
	r := e.Value.(*region)
	c.forgetLocked(r)
	c.mu.Unlock()
	c.Counts.Evicted.Add(r.bytes)
	if !c.plain(r.name) {
		return
	}
	f, err := c.o.Storage.Open(c.path(r.name), storage.Write)
	if err == nil {
		// A slot that began in the region may reach into the next one: that part stays until the next one goes.
		err = errors.Join(f.Punch(int64(r.at)*regionBytes, regionBytes), f.Close())
	}
	if err != nil && !isMissing(err) {
		c.o.Logger.Warn("cannot give back what the node's cache keeps", "file", c.path(r.name), "err", err)
	}
}

// forgetLocked takes a region off the books.
func (c *Cache) forgetLocked(r *region) {
	c.recent.Remove(r.listed)
	delete(c.regions, r.place)
	for page := range uint32(regionBytes / chunk.PageSize) {
		delete(c.checked, place{r.name, r.at*(regionBytes/chunk.PageSize) + page})
	}
	c.used -= r.bytes
}
