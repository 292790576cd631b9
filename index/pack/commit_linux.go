package pack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpucr/gpucr-fs/index/storage"
)

// Committed is what a Commit made durable.
type Committed struct {
	Chunks []Chunk
	Marks  map[uint32]int64 // pack → end of its journal
}

// Commit makes everything appended so far durable, and kvs with it: when it returns nil, the journals tell of all of it. On an error nothing is lost: what was
// pending stays pending.
func (s *Set) Commit(kvs []KV) (Committed, error) {
	if err := checkKVs(kvs); err != nil {
		return Committed{}, err
	}
	s.commitMu.Lock()
	defer s.commitMu.Unlock()

	s.mu.Lock()
	if len(kvs) > 0 && s.active == nil {
		if err := s.roll(); err != nil {
			s.mu.Unlock()
			return Committed{}, err
		}
	}
	chunks := s.pending
	s.pending = nil
	var dirty []*file
	for f := range s.dirty {
		dirty = append(dirty, f)
	}
	slices.SortFunc(dirty, func(a, b *file) int { return int(a.n) - int(b.n) })
	clear(s.dirty)
	active := s.active
	s.mu.Unlock()

	done, err := s.commit(chunks, kvs, dirty, active)
	if err != nil {
		s.mu.Lock()
		s.pending = append(chunks, s.pending...)
		for _, f := range dirty {
			s.dirty[f] = true
		}
		s.mu.Unlock()
	}
	return done, err
}

func (s *Set) commit(chunks []Chunk, kvs []KV, dirty []*file, active *file) (Committed, error) {
	for _, f := range dirty {
		if err := f.f.Sync(); err != nil {
			return Committed{}, s.writeError(f.f.Name(), err)
		}
	}
	byPack := map[uint32][]Chunk{}
	for _, c := range chunks {
		byPack[c.Loc.Pack] = append(byPack[c.Loc.Pack], c)
	}
	order := make([]uint32, 0, len(byPack)+1)
	for n := range byPack {
		order = append(order, n)
	}
	if len(kvs) > 0 && byPack[active.n] == nil {
		order = append(order, active.n)
	}
	slices.Sort(order) // the active pack has the highest number: its frame, with the keys, comes last
	done := Committed{Chunks: chunks, Marks: map[uint32]int64{}}
	for _, n := range order {
		var keys []KV
		if n == active.n {
			keys = kvs
		}
		end, err := s.writeFrames(n, encodeFrames(nil, byPack[n], nil, keys))
		if err != nil {
			return Committed{}, err
		}
		done.Marks[n] = end
	}
	return done, nil
}

// writeFrames appends frames to the journal of pack n and syncs it. Call with commitMu held.
func (s *Set) writeFrames(n uint32, frames []byte) (end int64, err error) {
	s.mu.Lock()
	f, err := s.open(n)
	s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	j, err := s.fs.Open(s.JournalPath(n), storage.Write)
	if err != nil {
		return 0, fmt.Errorf("journal %s: %w", JournalName(n), err)
	}
	defer j.Close()
	if _, torn := s.ends[n]; torn {
		if err := errors.Join(j.Truncate(f.journalEnd), j.Sync()); err != nil {
			return 0, s.writeError(j.Name(), err)
		}
		s.mu.Lock()
		delete(s.ends, n)
		s.mu.Unlock()
	}
	_, err = j.WriteAt(frames, f.journalEnd)
	if err == nil {
		err = j.Sync()
	}
	if err != nil {
		// What was half written must not be found behind the shorter frames of a later attempt.
		return 0, errors.Join(s.writeError(j.Name(), err), j.Truncate(f.journalEnd))
	}
	f.journalEnd += int64(len(frames))
	return f.journalEnd, nil
}

// Roll ends the active pack: the next Append begins a new one.
func (s *Set) Roll() error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active == nil || s.active.end == 0 {
		return nil
	}
	return s.roll()
}

// Active gives the number of the pack that takes appends; 0 if there is none yet.
func (s *Set) Active() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active == nil {
		return 0
	}
	return s.active.n
}

// Kill journals chunks of pack n as dead, durably. Their slots may be punched afterwards.
func (s *Set) Kill(n uint32, dead []Chunk) (mark int64, err error) {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	return s.writeFrames(n, encodeFrames(nil, nil, dead, nil))
}

// Range is a stretch of a pack in bytes, page-aligned.
type Range struct{ Off, Len int64 }

// Punch gives the ranges of pack n back to the file system.
func (s *Set) Punch(n uint32, ranges []Range) error {
	s.mu.Lock()
	f, err := s.open(n)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	for _, r := range ranges {
		if err := f.f.Punch(r.Off, r.Len); err != nil {
			return fmt.Errorf("punch %s at %d: %w", Name(n), r.Off, err)
		}
	}
	return nil
}

// Allocated gives how many bytes of the ranges of pack n occupy disk.
func (s *Set) Allocated(n uint32, ranges []Range) (int64, error) {
	s.mu.Lock()
	f, err := s.open(n)
	s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, r := range ranges {
		n, err := f.f.Allocated(r.Off, r.Len)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// Size gives the length of pack n in bytes, holes included.
func (s *Set) Size(n uint32) (int64, error) {
	st, err := s.fs.Stat(s.PackPath(n))
	if errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("pack %s: %w: the file is gone", Name(n), ErrCorrupt)
	}
	if err != nil {
		return 0, err
	}
	return st.Size, nil
}

// Drop removes pack n and its journal. The active pack is refused. The journal goes last: alone it tells that all chunks were dead, and is dropped again. A pack
// without one could not be told from a pack whose journal was lost.
func (s *Set) Drop(n uint32) error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active != nil && s.active.n == n {
		return fmt.Errorf("pack %s takes appends", Name(n))
	}
	if f := s.files[n]; f != nil {
		delete(s.files, n)
		delete(s.dirty, f)
		if err := f.f.Close(); err != nil {
			return err
		}
	}
	if err := s.fs.Remove(s.PackPath(n)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := s.fs.SyncDir(s.dir); err != nil {
		return err
	}
	delete(s.ends, n)
	return errors.Join(s.fs.Remove(s.JournalPath(n)), s.fs.SyncDir(s.dir))
}

// RewriteJournal replaces the journal of pack n by one that holds just chunks and kvs, in one step that a crash cannot split.
func (s *Set) RewriteJournal(n uint32, chunks []Chunk, kvs []KV) (mark int64, err error) {
	if err := checkKVs(kvs); err != nil {
		return 0, err
	}
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	frames := encodeFrames(&Header{Version: Version, Pack: n, Store: s.o.Store}, chunks, nil, kvs)
	tmp := s.JournalPath(n) + ".new"
	if err := storage.WriteSynced(s.fs, tmp, frames); err != nil {
		return 0, s.writeError(tmp, err)
	}
	if err := errors.Join(s.fs.Rename(tmp, s.JournalPath(n)), s.fs.SyncDir(s.dir)); err != nil {
		return 0, err
	}
	s.mu.Lock()
	delete(s.ends, n)
	if f := s.files[n]; f != nil {
		f.journalEnd = int64(len(frames))
	}
	s.mu.Unlock()
	return int64(len(frames)), nil
}

// Disk gives the bytes that the set's files occupy on disk.
func (s *Set) Disk() (int64, error) {
	names, err := s.fs.List(s.dir)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, name := range names {
		if st, err := s.fs.Stat(filepath.Join(s.dir, name)); err == nil {
			sum += st.Disk
		}
	}
	return sum, nil
}
