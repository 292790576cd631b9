package index

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/gpucr/gpucr-fs/index/chunk"
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
	done chan struct{}
	loc  pack.Loc
	err  error
}

var policies = map[Compression]chunk.Policy{
	CompressAuto: chunk.PolicyAuto, CompressZstd: chunk.PolicyZstd, CompressS2: chunk.PolicyS2, CompressNone: chunk.PolicyNone,
}

func newIngest(s *Store) *ingest {
	// Two goroutines a core: while one waits for the disk the other hashes. The queue keeps them busy while a writer splits the next chunk, and bounds the buffers.
	in := &ingest{s: s, jobs: make(chan *pending, 2*s.o.Workers), recent: map[chunk.ID]*recent{}}
	for range 2 * s.o.Workers {
		in.wg.Add(1)
		go in.work()
	}
	return in
}

// close ends the workers after what is queued.
func (in *ingest) close() {
	close(in.jobs)
	in.wg.Wait()
	in.commits.Wait()
}

// submit hands a full buffer to the workers; it waits when all are busy.
func (in *ingest) submit(buf []byte, policy chunk.Policy, p *pinner) *pending {
	c := &pending{buf: buf, policy: policy, pins: p, done: make(chan struct{})}
	in.jobs <- c
	return c
}

func (in *ingest) work() {
	defer in.wg.Done()
	scratch, err := in.s.arena.get(chunk.MaxEncoded(in.s.config.Chunk.Max))
	for c := range in.jobs {
		if err != nil {
			c.err = err
		} else {
			c.ref, c.err = in.store(c, scratch)
		}
		in.s.arena.put(c.buf)
		c.buf = nil
		close(c.done)
	}
	in.s.arena.put(scratch)
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
	in.mu.Lock()
	if r := in.recent[id]; r != nil {
		in.mu.Unlock()
		<-r.done
		return r.loc, true, r.err
	}
	r := &recent{done: make(chan struct{})}
	in.recent[id] = r
	in.mu.Unlock()

	known := false
	if !s.isBad(id) {
		r.loc, r.err = s.db.loc(id)
		known = r.err == nil && int(r.loc.Raw) == len(content)
	}
	if !known {
		stored, codec := s.coder.Encode(policy, content, scratch)
		r.loc, r.err = s.packs.Append(id, stored, len(content), codec)
		if r.err == nil {
			s.stats.chunksNew.Add(1)
			s.stats.stored.Add(r.loc.Slot())
			s.heal(id)
		}
	}
	r.err = classify("store chunk", r.err)
	if known || r.err != nil {
		in.mu.Lock()
		delete(in.recent, id)
		in.mu.Unlock()
	}
	close(r.done)
	if !known && r.err == nil && in.since.Add(r.loc.Slot()) >= CommitEvery {
		in.commitSoon()
	}
	return r.loc, known, r.err
}

// commitSoon commits in the background, one at a time.
func (in *ingest) commitSoon() {
	if !in.committing.CompareAndSwap(false, true) {
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
				delete(in.recent, c.ID)
			default:
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
	loc, err := s.db.loc(id)
	if errors.Is(err, errMissing) {
		return loc, errors.New("the index does not know its chunk " + id.String()[:12])
	}
	return loc, err
}

// whereIs gives the location of a chunk of want bytes. It is known, unless that is zero, or the chunk has been found damaged since: then it may have been stored anew.
func (s *Store) whereIs(id chunk.ID, want uint32, known pack.Loc) (loc pack.Loc, err error) {
	s.badMu.Lock()
	_, met := s.bad[id]
	s.badMu.Unlock()
	if loc = known; met || loc == (pack.Loc{}) {
		loc, err = s.locate(id)
	}
	if err == nil && loc.Raw != want {
		err = fmt.Errorf("%w: chunk of %d bytes, not %d", errDamaged, loc.Raw, want)
	}
	return loc, err
}

func (s *Store) isBad(id chunk.ID) bool {
	s.badMu.Lock()
	defer s.badMu.Unlock()
	return s.bad[id]
}

// markBad remembers a chunk as damaged: should its content come by again it is stored anew, which heals every checkpoint that uses it.
func (s *Store) markBad(id chunk.ID) {
	s.badMu.Lock()
	defer s.badMu.Unlock()
	s.bad[id] = true
}

func (s *Store) heal(id chunk.ID) {
	s.badMu.Lock()
	defer s.badMu.Unlock()
	if s.bad[id] {
		s.bad[id] = false
		s.log.Info("a damaged chunk was stored anew", "chunk", id.String())
	}
}
