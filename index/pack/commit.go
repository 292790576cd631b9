package pack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/gpucr/gpucr-fs/index/storage"
)

// Committed is what a Commit made durable.
type Committed struct {
	Chunks []Chunk
	Marks  map[uint32]int64 // pack → end of its journal
	Lost   []Chunk          // after an error: what had been appended and nobody knows to be on the disk
}

// Commit makes everything appended so far durable, and kvs with it: when it returns nil, the journals tell of all of
// it. After an error what was pending stays pending, but for what lies in packs that are condemned by it: that is lost.
// Whether kvs are in a journal is not known then.
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
	if len(kvs) > 0 {
		s.cut(s.active) // a checkpoint may be complete now, and nothing follow
		s.run = 0
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
	if err == nil {
		return done, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	pending := append(chunks, s.pending...)
	s.pending = nil
	var lost []Chunk
	for _, c := range pending {
		if s.condemned[c.Loc.Pack] != nil {
			lost = append(lost, c)
		} else {
			s.pending = append(s.pending, c)
		}
	}
	for _, f := range dirty {
		if s.condemned[f.n] == nil {
			s.dirty[f] = true
		}
	}
	return Committed{Lost: lost}, err
}

// condemn ends pack n after a failed sync. The kernel says once that it could not write, and then calls the pages
// clean: what it answers to a later sync, or from its cache, proves nothing. What was committed before is not
// concerned. Call with commitMu held.
func (s *Set) condemn(n uint32, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.o.Logger.Error("a pack is given up for what is written from now on", "pack", Name(n), "err", why)
	s.condemned[n] = why
	if f := s.files[n]; f != nil {
		delete(s.dirty, f)
	}
	if s.active != nil && s.active.n == n {
		s.active = nil
	}
}

// TakeLost gives what waited for a Commit in packs that were condemned otherwise than by one, and why. It is lost; no
// Commit tells of it any more.
func (s *Set) TakeLost() (lost []Chunk, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = slices.DeleteFunc(s.pending, func(c Chunk) bool {
		err := s.condemned[c.Loc.Pack]
		if err != nil {
			lost, why = append(lost, c), err
		}
		return err != nil
	})
	return lost, why
}

// Condemned says whether a sync of pack n or of its journal has failed since the set was opened. What the journal tells
// of its last chunks is then not known.
func (s *Set) Condemned(n uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.condemned[n] != nil
}

func (s *Set) commit(chunks []Chunk, kvs []KV, dirty []*file, active *file) (Committed, error) {
	for _, f := range dirty {
		if err := f.f.Sync(); err != nil {
			s.condemn(f.n, err)
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
		if len(kvs) > 0 && n == active.n {
			keys = kvs
		}
		end, err := s.writeFrames(n, s.encode(n, nil, byPack[n], nil, keys))
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
	if err == nil && s.condemned[n] != nil {
		err = fmt.Errorf("journal %s takes no more: %w", JournalName(n), s.condemned[n])
	}
	s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if _, err := s.journalLen(n, f); err != nil {
		return 0, err
	}
	j, err := s.fs.Open(s.JournalPath(n), storage.Write)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, s.writeError(s.JournalPath(n), err) // nothing has been written: it may open the next time
	}
	if err == nil {
		err = s.appendFrames(j, f, frames)
		j.Close()
	}
	switch {
	case err == nil:
	case errors.Is(err, errFullJournal):
		s.cutRefused(f)
		return 0, s.writeError(s.JournalPath(n), err)
	default:
		// Nobody knows what the disk has of the frames, so nothing may follow them there. All that was durable before
		// goes into a new file, and they behind it.
		s.o.Logger.Error("a journal could not be written, and is written anew", "journal", JournalName(n), "err", err)
		if again := s.copyJournal(f, frames); again != nil {
			err = errors.Join(err, again)
			s.condemn(n, err)
			return 0, s.writeError(s.JournalPath(n), err)
		}
	}
	f.journalEnd += int64(len(frames))
	return f.journalEnd, nil
}

// errFullJournal: the disk was full before all of the frames were written. What was written lies behind the end.
var errFullJournal = errors.New("no room for the journal")

// appendFrames writes frames behind the end of the journal of f, which j is. Each is synced before the next one: a
// power cut must not leave a later frame without those before it.
func (s *Set) appendFrames(j storage.File, f *file, frames []byte) error {
	s.mu.Lock()
	_, torn := s.ends[f.n]
	s.mu.Unlock()
	if torn {
		if err := cutTail(j, f.journalEnd); err != nil {
			return err
		}
		s.mu.Lock()
		delete(s.ends, f.n)
		s.mu.Unlock()
	}
	for at := f.journalEnd; len(frames) > 0; {
		n := frameHeader + int64(binary.LittleEndian.Uint32(frames[4:]))
		if _, err := j.WriteAt(frames[:n], at); storage.IsFull(err) {
			return fmt.Errorf("%w: %w", errFullJournal, err)
		} else if err != nil {
			return err
		} else if err := j.Sync(); err != nil {
			return err
		}
		at, frames = at+n, frames[n:]
	}
	return nil
}

// cutRefused cuts off what a full disk has taken of frames. Where the disk does not say that this is gone, it stays
// behind the end, until the next frames are written.
func (s *Set) cutRefused(f *file) {
	j, err := s.fs.Open(s.JournalPath(f.n), storage.Write)
	if err == nil {
		err = cutTail(j, f.journalEnd)
		j.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.ends, f.n); err != nil {
		s.ends[f.n] = f.journalEnd
		s.o.Logger.Warn("what a full disk refused stays behind the end of a journal", "journal", JournalName(f.n),
			"err", err)
	}
}

// maxTail bounds in bytes what is cut off the end of a journal.
const maxTail = 256 << 20

// cutTail cuts off what lies behind the end of a journal: half a frame that a crash has left, or frames that a full
// disk refused. The last one goes first: at any moment there are only some of the first ones, as if they had just been
// written.
func cutTail(j storage.File, end int64) error {
	size, err := j.Size()
	if err == nil && size-end > maxTail {
		err = fmt.Errorf("%d bytes lie behind its end, more than a commit writes", size-end)
	}
	if err != nil {
		return err
	}
	payload, why, err := readFrame(j, end, size, new([]byte))
	next := end + frameHeader + int64(len(payload))
	if err == nil && why == "" && next < size {
		err = cutTail(j, next)
	}
	if err != nil {
		return err
	}
	return storage.Cut(j, end)
}

// copyJournal puts a new file in the place of the journal of f: what it held, and frames.
func (s *Set) copyJournal(f *file, frames []byte) error {
	path := s.JournalPath(f.n)
	_, bad, err := readJournal(s.fs, path, 0, f.journalEnd, s.opener(f.n), func(Record) error { return nil })
	if err == nil && len(bad) > 0 {
		err = fmt.Errorf("%w: %s", ErrCorrupt, bad[0].Text)
	}
	if err != nil {
		return err
	}
	old, err := s.fs.Open(path, storage.Read)
	if err != nil {
		return err
	}
	all := make([]byte, f.journalEnd, f.journalEnd+int64(len(frames)))
	_, err = old.ReadAt(all, 0)
	old.Close()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := storage.WriteFile(s.fs, path, append(all, frames...)); err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.ends, f.n)
	s.mu.Unlock()
	return nil
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
	return s.writeFrames(n, s.encode(n, nil, nil, dead, nil))
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

// Drop removes pack n and its journal. The active pack is refused. The journal goes last: alone it tells that all
// chunks were dead, and is dropped again. A pack without one could not be told from a pack whose journal was lost.
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
	delete(s.sizes, n)
	if err := s.fs.Remove(s.JournalPath(n)); err != nil {
		return err
	}
	delete(s.ends, n) // not before: a journal that stays is no longer than it was
	return s.fs.SyncDir(s.dir)
}

// RewriteJournal replaces the journal of pack n by one that holds just chunks and kvs, in one step that a crash cannot
// split.
func (s *Set) RewriteJournal(n uint32, chunks []Chunk, kvs []KV) (mark int64, err error) {
	if err := checkKVs(kvs); err != nil {
		return 0, err
	}
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	frames := s.encode(n, &Header{Version: Version, Pack: n, Store: s.o.Store}, chunks, nil, kvs)
	if err := storage.WriteFile(s.fs, s.JournalPath(n), frames); err != nil {
		// Both files tell all that counts. Which one the disk has is not known: no frame may follow.
		s.condemn(n, err)
		s.mu.Lock()
		if f := s.files[n]; f != nil {
			f.journalEnd = unknown
		}
		if st, err := s.fs.Stat(s.JournalPath(n)); err == nil && st.Size == int64(len(frames)) {
			delete(s.ends, n) // it is the new one
		}
		s.mu.Unlock()
		return 0, s.writeError(s.JournalPath(n), err)
	}
	s.mu.Lock()
	delete(s.ends, n)
	if f := s.files[n]; f != nil {
		f.journalEnd = int64(len(frames))
	}
	s.mu.Unlock()
	return int64(len(frames)), nil
}
