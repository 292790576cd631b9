package index

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// CommitEvery is how many bytes are appended between two commits while nothing is sealed: it bounds what a crash makes to be stored again, and the memory that locations
// not yet in the index take.
const CommitEvery = 256 << 20

// ingest turns full chunk buffers into references: a pool of workers that hash, look up, compress and append.
type ingest struct {
	s    *Store
	jobs chan *pending
	wg   sync.WaitGroup

	gate   sync.RWMutex // read: a chunk is handed to the workers, or a commit is begun; write: closed changes
	closed bool

	mu     sync.Mutex
	recent map[chunk.ID]*recent // appended or being appended, not yet in the index

	since      atomic.Int64 // bytes appended since the last commit was begun
	committing atomic.Bool
	commits    sync.WaitGroup
}

// pending is a chunk on its way. The result is valid once done is closed.
type pending struct {
	buf    []byte // from the arena; the worker gives it back
	policy chunk.Policy
	pins   *pinner
	done   chan struct{}
	ref    manifest.ChunkRef
	err    error
}

// recent is a chunk whose location the index does not know yet. loc and err are valid once done is closed.
type recent struct {
	done    chan struct{}
	loc     pack.Loc
	err     error
	indexed pack.Loc // what a commit indexed before done was closed; guarded by ingest.mu
}

var policies = map[Compression]chunk.Policy{
	CompressAuto: chunk.PolicyAuto, CompressZstd: chunk.PolicyZstd, CompressS2: chunk.PolicyS2, CompressNone: chunk.PolicyNone,
}

func newIngest(s *Store) *ingest {
	// The queue keeps them busy while a writer splits the next chunk, and bounds the buffers.
	in := &ingest{s: s, jobs: make(chan *pending, 2*s.o.Workers), recent: map[chunk.ID]*recent{}}
	for range s.o.Tuning.IngestWorkers {
		in.wg.Add(1)
		go in.work()
	}
	return in
}

// close ends the workers after what is queued; what comes later fails.
func (in *ingest) close() {
	in.gate.Lock()
	in.closed = true
	in.gate.Unlock()
	close(in.jobs)
	in.wg.Wait()
	in.commits.Wait()
}

// submit hands a full buffer to the workers; it waits when all are busy.
func (in *ingest) submit(buf []byte, policy chunk.Policy, p *pinner) *pending {
	c := &pending{buf: buf, policy: policy, pins: p, done: make(chan struct{})}
	in.gate.RLock()
	defer in.gate.RUnlock()
	if in.closed {
		c.err = errClosed
		in.s.arena.Put(c.buf)
		c.buf = nil
		close(c.done)
		return c
	}
	in.jobs <- c
	return c
}

func (in *ingest) work() {
	defer in.wg.Done()
	scratch, err := in.s.arena.Get(chunk.MaxEncoded(in.s.config.Chunk.Max))
	for c := range in.jobs {
		if err != nil {
			c.err = err
		} else {
			c.ref, c.err = in.store(c, scratch)
		}
		in.s.arena.Put(c.buf)
		c.buf = nil
		close(c.done)
	}
	in.s.arena.Put(scratch)
}

// store gives the reference of a chunk, storing it if the store lacks it.
func (in *ingest) store(c *pending, scratch []byte) (manifest.ChunkRef, error) {
	s := in.s
	id := chunk.Sum(c.buf)
	s.sweepMu.RLock()
	defer s.sweepMu.RUnlock()
	loc, dup, err := in.locate(id, c.buf, c.policy, scratch)
	if err != nil {
		return manifest.ChunkRef{}, err
	}
	c.pins.pin(loc)
	if dup {
		s.stats.chunksDup.Add(1)
	}
	return manifest.ChunkRef{ID: id, Len: uint32(len(c.buf)), Stored: uint32(loc.Slot())}, nil
}

// locate gives the location of content: the one it has, or a new one.
func (in *ingest) locate(id chunk.ID, content []byte, policy chunk.Policy, scratch []byte) (loc pack.Loc, dup bool, err error) {
	s := in.s
	r, ours := in.enter(id)
	if !ours {
		return r.loc, true, r.err
	}
	known := false
	r.loc, r.err = s.db.Loc(id)
	known = r.err == nil && int(r.loc.Raw) == len(content) && !s.isDamaged(id, r.loc) && s.packs.Reaches(r.loc)
	if !known {
		stored, codec := s.coder.Encode(policy, content, scratch)
		r.loc, r.err = s.packs.Append(id, stored, len(content), codec)
		if r.err == nil {
			s.stats.chunksNew.Add(1)
			s.stats.stored.Add(r.loc.Slot())
			s.tellHealed(id)
			call(s.hooks.appended)
		}
	}
	r.err = fault.Classify("store chunk", r.err)
	in.mu.Lock()
	if known || r.err != nil || r.indexed == r.loc {
		delete(in.recent, id)
	}
	in.mu.Unlock()
	close(r.done)
	if !known && r.err == nil && in.since.Add(r.loc.Slot()) >= s.o.Tuning.CommitEvery {
		in.commitSoon()
	}
	return r.loc, known, r.err
}

// enter gives the chunk as it is among the recent ones, done; or enters it, and it is the caller's to find or store.
func (in *ingest) enter(id chunk.ID) (r *recent, ours bool) {
	for {
		in.mu.Lock()
		if r = in.recent[id]; r == nil {
			r = &recent{done: make(chan struct{})}
			in.recent[id] = r
			in.mu.Unlock()
			return r, true
		}
		in.mu.Unlock()
		<-r.done
		if r.err != nil || !in.s.isDamaged(id, r.loc) {
			return r, false
		}
		// It was stored a moment ago and cannot be read: it is stored once more, and the commit to come indexes the
		// later one.
		in.mu.Lock()
		if in.recent[id] == r {
			delete(in.recent, id)
		}
		in.mu.Unlock()
	}
}

// commitSoon commits in the background, one at a time.
func (in *ingest) commitSoon() {
	in.gate.RLock()
	defer in.gate.RUnlock()
	if in.closed || !in.committing.CompareAndSwap(false, true) {
		return
	}
	in.since.Store(0)
	in.commits.Add(1)
	go func() {
		defer in.commits.Done()
		defer in.committing.Store(false)
		if err := in.s.commit(nil); err != nil {
			in.s.log.Error("commit failed; it is tried again with the next", "err", err)
		}
	}()
}

// indexed tells that the index knows these chunks now.
func (in *ingest) indexed(chunks []pack.Chunk) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, c := range chunks {
		if r := in.recent[c.ID]; r != nil {
			select {
			case <-r.done:
				if r.loc == c.Loc {
					delete(in.recent, c.ID)
				}
			default:
				r.indexed = c.Loc
			}
		}
	}
}

// locate gives the location of a chunk that a manifest names.
func (s *Store) locate(id chunk.ID) (pack.Loc, error) {
	s.ingest.mu.Lock()
	r := s.ingest.recent[id]
	s.ingest.mu.Unlock()
	if r != nil {
		<-r.done
		if r.err == nil {
			return r.loc, nil
		}
	}
	loc, err := s.db.Loc(id)
	if errors.Is(err, keys.ErrMissing) {
		return loc, errors.New("the index does not know its chunk " + id.String()[:12])
	}
	return loc, err
}

// whereIs gives the location of a chunk of want bytes. It is known, unless that is zero, or the chunk has been found damaged since: then it may have been stored anew.
func (s *Store) whereIs(id chunk.ID, want uint32, known pack.Loc) (loc pack.Loc, err error) {
	if loc = known; loc == (pack.Loc{}) || s.metDamage(id) {
		loc, err = s.locate(id)
	}
	if err == nil && loc.Raw != want {
		err = fmt.Errorf("%w: chunk of %d bytes, not %d", keys.ErrDamaged, loc.Raw, want)
	}
	return loc, err
}
