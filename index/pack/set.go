package pack

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Options of a set of packs.
type Options struct {
	Store     [16]byte // identity written into and demanded of every journal
	PackSize  int64    // bytes at which a new pack is begun
	FreeFloor int64    // bytes of the file system that Append leaves free
	Logger    *slog.Logger
}

// Errors that callers tell apart. They come wrapped with the file concerned.
var (
	// ErrCorrupt: bytes on disk are not what was written.
	ErrCorrupt = errors.New("damaged")
	// ErrVersion: a later version of the program wrote it.
	ErrVersion = errors.New("written by a later version")
	// ErrNoSpace: writing would go below the floor of free space, or the disk is full.
	ErrNoSpace = errors.New("no space left")
)

// Set is the packs of one folder. One process at a time; safe for concurrent use within it.
type Set struct {
	dir string
	o   Options

	commitMu sync.Mutex // one Commit, Kill or rewrite at a time

	mu        sync.Mutex
	files     map[uint32]*file
	active    *file // takes appends; nil until the first
	next      uint32
	pending   []Chunk        // written, not yet committed
	dirty     map[*file]bool // written since the last sync
	unchecked int64          // bytes appended since free space was last looked at
}

// file is an open pack with its journal. end and journalEnd belong to Set.mu and Set.commitMu.
type file struct {
	n          uint32
	f          *os.File
	direct     *os.File // the same past the page cache; nil where the file system cannot
	end        int64    // where the next slot goes
	journalEnd int64
}

func (f *file) close() error {
	err := f.f.Close()
	if f.direct != nil {
		err = errors.Join(err, f.direct.Close())
	}
	return err
}

// Name gives the file name of pack n.
func Name(n uint32) string { return fmt.Sprintf("%08d.pack", n) }

// JournalName gives the file name of its journal.
func JournalName(n uint32) string { return fmt.Sprintf("%08d.journal", n) }

// Open opens the set in dir, which must exist, and removes packs without a journal.
func Open(dir string, o Options) (*Set, error) {
	s := &Set{dir: dir, o: o, files: map[uint32]*file{}, dirty: map[*file]bool{}, next: 1}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	journals := map[uint32]bool{}
	var packs []uint32
	for _, e := range entries {
		var n uint32
		if _, err := fmt.Sscanf(e.Name(), "%08d.", &n); err != nil {
			continue
		}
		switch e.Name() {
		case JournalName(n):
			journals[n] = true
		case Name(n):
			packs = append(packs, n)
		default:
			continue
		}
		s.next = max(s.next, n+1)
	}
	for _, n := range packs {
		if !journals[n] {
			o.Logger.Info("removing a pack that was being dropped", "pack", Name(n))
			if err := os.Remove(filepath.Join(dir, Name(n))); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// Packs gives the numbers of all packs, ascending: those with a journal.
func (s *Set) Packs() ([]uint32, error) {
	names, err := filepath.Glob(filepath.Join(s.dir, "*.journal"))
	if err != nil {
		return nil, err
	}
	var out []uint32
	for _, name := range names {
		var n uint32
		if _, err := fmt.Sscanf(filepath.Base(name), "%08d.journal", &n); err == nil && filepath.Base(name) == JournalName(n) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, nil
}

// PackPath and JournalPath give the paths of pack n.
func (s *Set) PackPath(n uint32) string    { return filepath.Join(s.dir, Name(n)) }
func (s *Set) JournalPath(n uint32) string { return filepath.Join(s.dir, JournalName(n)) }

// Read calls ReadJournal on what is committed of the journal of pack n, and insists on its header.
func (s *Set) Read(n uint32, from int64, fn func(Record) error) (end int64, bad []Damage, err error) {
	size, err := s.JournalSize(n)
	if err != nil {
		return 0, nil, err
	}
	return ReadJournal(s.JournalPath(n), from, size, func(r Record) error {
		if h := r.Header; h != nil {
			switch {
			case h.Version != Version:
				return fmt.Errorf("%w (format %d)", ErrVersion, h.Version)
			case h.Store != s.o.Store:
				return fmt.Errorf("%w: it belongs to another store", ErrCorrupt)
			case h.Pack != n:
				return fmt.Errorf("%w: it belongs to pack %d", ErrCorrupt, h.Pack)
			}
		}
		for _, c := range []*Chunk{r.Chunk, r.Dead} {
			if c != nil && c.Loc.Pack != n {
				return fmt.Errorf("%w: it tells of pack %d", ErrCorrupt, c.Loc.Pack)
			}
		}
		return fn(r)
	})
}

// Resume makes pack n the one that takes appends, cut to what its journal accounts for.
func (s *Set) Resume(n uint32, payloadEnd, journalEnd int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active != nil {
		return nil
	}
	f, err := s.open(n)
	if err != nil {
		return err
	}
	for _, t := range []struct {
		path string
		size int64
	}{{s.PackPath(n), payloadEnd}, {s.JournalPath(n), journalEnd}} {
		st, err := os.Stat(t.path)
		if err != nil {
			return err
		}
		if st.Size() > t.size {
			if err := os.Truncate(t.path, t.size); err != nil {
				return err
			}
		}
	}
	f.end, f.journalEnd = payloadEnd, journalEnd
	s.active = f
	return nil
}

// open gives pack n, opened at most once. Call with mu held.
func (s *Set) open(n uint32) (*file, error) {
	if f := s.files[n]; f != nil {
		return f, nil
	}
	h, err := os.OpenFile(s.PackPath(n), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("pack %s: %w: the file is gone", Name(n), ErrCorrupt)
	}
	if err != nil {
		return nil, err
	}
	f := &file{n: n, f: h, direct: openDirect(s.PackPath(n))}
	if st, err := os.Stat(s.JournalPath(n)); err == nil {
		f.journalEnd = st.Size()
	}
	s.files[n] = f
	return f, nil
}

// Close closes all files. Uncommitted chunks are lost.
func (s *Set) Close() error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.close())
	}
	s.files, s.active = map[uint32]*file{}, nil
	return errors.Join(errs...)
}

// JournalSize gives the length of the journal of pack n in bytes. A frame that a Commit is just writing is not part of it.
func (s *Set) JournalSize(n uint32) (int64, error) {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	s.mu.Lock()
	f := s.files[n]
	s.mu.Unlock()
	if f != nil {
		return f.journalEnd, nil
	}
	st, err := os.Stat(s.JournalPath(n))
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// TruncateJournal cuts the journal of pack n.
func (s *Set) TruncateJournal(n uint32, size int64) error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.Truncate(s.JournalPath(n), size); err != nil {
		return err
	}
	if f := s.files[n]; f != nil {
		f.journalEnd = size
	}
	return nil
}
