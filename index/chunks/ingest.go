package chunks

import (
	"sync"
	"sync/atomic"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// CommitEvery is how many bytes are appended between two commits while nothing is sealed: it bounds what a crash
// makes to be stored again, and the memory that locations not yet in the index take.
const CommitEvery = 256 << 20

// ingest turns full chunk buffers into references: a pool of workers that hash, look up, compress and append.
type ingest struct {
	s    *Store
	jobs chan *Pending
	wg   sync.WaitGroup

	gate   sync.RWMutex // read: a chunk is handed to the workers, or a commit is begun; write: closed changes
	closed bool

	mu     sync.Mutex
	recent map[chunk.ID]*recent // appended or being appended, not yet in the index

	since      atomic.Int64 // bytes appended since the last commit was begun
	committing atomic.Bool
	commits    sync.WaitGroup
}

// Pending is a chunk on its way. The result is valid once done is closed.
type Pending struct {
	buf    []byte // from the arena; the worker gives it back
	policy chunk.Policy
	pins   *Pins
	Done   chan struct{}
	Ref    manifest.ChunkRef
	Err    error
}

// recent is a chunk whose location the index does not know yet. loc and err are valid once done is closed.
type recent struct {
	done    chan struct{}
	loc     pack.Loc
	err     error
	indexed pack.Loc // what a commit indexed before done was closed; guarded by ingest.mu
}

func newIngest(s *Store) *ingest {
	// The queue keeps them busy while a writer splits the next chunk, and bounds the buffers.
	in := &ingest{s: s, jobs: make(chan *Pending, 2*s.o.Workers), recent: map[chunk.ID]*recent{}}
	for range s.o.IngestWorkers {
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

// Submit hands a full buffer of the arena to the workers; it waits when all are busy. What it becomes is pinned by p.
func (s *Store) Submit(buf []byte, policy chunk.Policy, p *Pins) *Pending {
	return s.ingest.submit(buf, policy, p)
}

// submit hands a full buffer to the workers; it waits when all are busy.
func (in *ingest) submit(buf []byte, policy chunk.Policy, p *Pins) *Pending {
	c := &Pending{buf: buf, policy: policy, pins: p, Done: make(chan struct{})}
	in.gate.RLock()
	defer in.gate.RUnlock()
	if in.closed {
		c.Err = errClosed
		in.s.Arena.Put(c.buf)
		c.buf = nil
		close(c.Done)
		return c
	}
	in.jobs <- c
	return c
}

func (in *ingest) work() {
	defer in.wg.Done()
	scratch, err := in.s.Arena.Get(chunk.MaxEncoded(in.s.o.MaxChunk))
	for c := range in.jobs {
		if err != nil {
			c.Err = err
		} else {
			c.Ref, c.Err = in.store(c, scratch)
		}
		in.s.Arena.Put(c.buf)
		c.buf = nil
		close(c.Done)
	}
	in.s.Arena.Put(scratch)
}

// store gives the reference of a chunk, storing it if the store lacks it.
func (in *ingest) store(c *Pending, scratch []byte) (manifest.ChunkRef, error) {
	s := in.s
	id := s.Packs.Coder().Sum(c.buf)
	s.sweepMu.RLock()
	defer s.sweepMu.RUnlock()
	loc, dup, err := in.locate(id, c.buf, c.policy, scratch)
	if err != nil {
		return manifest.ChunkRef{}, err
	}
	c.pins.pin(loc)
	if dup {
		s.Counts.Dup.Add(1)
	}
	return manifest.ChunkRef{ID: id, Len: uint32(len(c.buf)), Stored: uint32(loc.Slot())}, nil
}

// locate gives the location of content: the one it has, or a new one.
func (in *ingest) locate(id chunk.ID, content []byte, policy chunk.Policy,
	scratch []byte) (loc pack.Loc, dup bool, err error) {
	s := in.s
	r, ours := in.enter(id)
	if !ours {
		return r.loc, true, r.err
	}
	known := false
	r.loc, r.err = s.DB.Loc(id)
	// Only the journal tells that the chunk is still there, and only what it tells outlives the index. So a chunk that
	// it does not have alive at this place is stored anew, and so is one whose journal is damaged.
	known = r.err == nil && int(r.loc.Raw) == len(content) && !s.IsDamaged(id, r.loc) &&
		!s.Aside.Has(r.loc.Pack) && s.Packs.Reaches(r.loc) && s.live.Has(id, r.loc)
	if !known {
		stored, codec := s.Coder.Encode(policy, content, scratch)
		r.loc, r.err = s.Packs.Append(id, stored, len(content), codec)
		if r.err == nil {
			s.Counts.New.Add(1)
			s.Counts.Stored.Add(r.loc.Slot())
			s.tellHealed(id)
			s.Hooks.Appended.Run()
		}
	}
	r.err = fault.Classify("store chunk", r.err)
	in.mu.Lock()
	if known || r.err != nil || r.indexed == r.loc {
		delete(in.recent, id)
	}
	in.mu.Unlock()
	close(r.done)
	if !known && r.err == nil && in.since.Add(r.loc.Slot()) >= s.o.CommitEvery {
		in.commitSoon()
	}
	return r.loc, known, r.err
}

// recently gives a chunk that was stored a moment ago, when the index may not know its location yet; nil if it was not.
func (in *ingest) recently(id chunk.ID) *recent {
	in.mu.Lock()
	r := in.recent[id]
	in.mu.Unlock()
	if r == nil {
		return nil
	}
	if <-r.done; r.err != nil {
		return nil
	}
	return r
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
		if r.err != nil || !in.s.IsDamaged(id, r.loc) && !in.s.Packs.Condemned(r.loc.Pack) {
			return r, false
		}
		// It was stored a moment ago and cannot be read, or its pack was given up before a commit told of it. It is
		// stored once more, and the commit to come indexes the later one.
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
		if err := in.s.Commit(nil); err != nil {
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
