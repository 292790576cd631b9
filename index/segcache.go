package index

import (
	"container/list"
	"errors"
	"fmt"
	"sync"

	"github.com/gpucr/gpucr-fs/index/manifest"
)

// segmentCacheBytes bounds the decoded segments in memory. Sequential readers need one segment a file; this keeps some hundred files of average runs.
const segmentCacheBytes = 32 << 20

// segmentCache keeps decoded segments, least recently used ones leaving first. The zero value is ready.
type segmentCache struct {
	mu    sync.Mutex
	byKey map[string]*list.Element
	lru   list.List // of cachedSegment
	bytes int
}

type cachedSegment struct {
	key   string
	seg   *manifest.Segment
	bytes int
}

func (c *segmentCache) get(key string) *manifest.Segment {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byKey[key]
	if e == nil {
		return nil
	}
	c.lru.MoveToFront(e)
	return e.Value.(cachedSegment).seg
}

func (c *segmentCache) add(key string, seg *manifest.Segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey[key] != nil {
		return
	}
	if c.byKey == nil {
		c.byKey = map[string]*list.Element{}
	}
	v := cachedSegment{key, seg, 24*len(seg.Runs) + 40*len(seg.Chunks) + 128}
	c.byKey[key] = c.lru.PushFront(v)
	for c.bytes += v.bytes; c.bytes > segmentCacheBytes && c.lru.Len() > 1; {
		old := c.lru.Remove(c.lru.Back()).(cachedSegment)
		delete(c.byKey, old.key)
		c.bytes -= old.bytes
	}
}

// segment gives a committed segment, decoded.
func (s *Store) segment(key string) (*manifest.Segment, error) {
	if seg := s.segs.get(key); seg != nil {
		return seg, nil
	}
	_, payload, err := s.db.meta(key)
	if errors.Is(err, errMissing) {
		return nil, fmt.Errorf("%w: segment %s is missing", errDamaged, key)
	}
	if err != nil {
		return nil, err
	}
	seg, err := manifest.DecodeSegment(payload)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", errDamaged, err)
	}
	s.segs.add(key, seg)
	return seg, nil
}
