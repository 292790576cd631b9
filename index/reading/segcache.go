package reading

import (
	"container/list"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// segmentCacheBytes bounds the decoded segments in memory. Sequential readers need one segment a file; this keeps
// some hundred files of average runs.
const segmentCacheBytes = 32 << 20

// segmentCache keeps decoded segments, least recently used ones leaving first. The zero value is ready.
type segmentCache struct {
	mu    sync.Mutex
	byKey map[string]*list.Element
	lru   list.List // of cachedSegment
	bytes int
}

// segmentCost is what a segment takes in memory beside its runs and chunks, in bytes: key, places in list and map,
// and the structures.
const segmentCost = 400

type cachedSegment struct {
	key   string
	seg   *segment
	bytes int
}

// segment is a decoded segment, with the locations of its chunks where they have been looked up.
type segment struct {
	*manifest.Segment
	locs atomic.Pointer[lookedUp] // nil before
}

// lookedUp is where chunks of a segment were found.
type lookedUp struct {
	locs  []pack.Loc // parallel to Chunks, zero where the index did not know one
	moves uint64     // CountMoves before they were looked up
}

// where gives the location of a chunk of the segment, the zero one when it is to be looked up.
func (s *Reader) where(seg *segment, i int32) pack.Loc {
	if l := seg.locs.Load(); l != nil && l.moves == s.chunks.CountMoves() {
		return l.locs[i]
	}
	return pack.Loc{}
}

func (c *segmentCache) get(key string) *segment {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byKey[key]
	if e == nil {
		return nil
	}
	c.lru.MoveToFront(e)
	return e.Value.(cachedSegment).seg
}

func (c *segmentCache) add(key string, seg *segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey[key] != nil {
		return
	}
	if c.byKey == nil {
		c.byKey = map[string]*list.Element{}
	}
	v := cachedSegment{key, seg, 24*len(seg.Runs) + 64*len(seg.Chunks) + segmentCost}
	c.byKey[key] = c.lru.PushFront(v)
	for c.bytes += v.bytes; c.bytes > segmentCacheBytes && c.lru.Len() > 1; {
		old := c.lru.Remove(c.lru.Back()).(cachedSegment)
		delete(c.byKey, old.key)
		c.bytes -= old.bytes
	}
}

// segment gives a committed segment, decoded.
func (s *Reader) segment(key string) (*segment, error) {
	if seg := s.segs.get(key); seg != nil {
		return seg, nil
	}
	payload, err := s.Part(key)
	if err != nil {
		return nil, err
	}
	decoded, err := manifest.DecodeSegment(payload)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", keys.ErrDamaged, err)
	}
	seg := &segment{Segment: decoded}
	s.segs.add(key, seg)
	return seg, nil
}

// Locate looks up where the chunks of [off, off+n) are stored, all of a segment at a time, which takes less than half
// the time that it takes one by one. It ends early when stop is closed. What cannot be looked up is left to the read
// that follows.
func (f *File) Locate(off, n int64, stop <-chan struct{}) {
	for end := min(off+n, f.e.Size); off < end; {
		select {
		case <-stop:
			return
		default:
		}
		seg, err := f.segment(off)
		if err != nil {
			return
		}
		off = seg.Start + seg.Len
		moves := f.c.s.chunks.CountMoves()
		if l := seg.locs.Load(); l != nil && l.moves == moves {
			continue
		}
		ids := make([]chunk.ID, len(seg.Chunks))
		for i, c := range seg.Chunks {
			ids[i] = c.ID
		}
		if locs, err := f.c.s.chunks.DB.Locs(ids); err == nil {
			seg.locs.Store(&lookedUp{locs: locs, moves: moves})
		}
	}
}
