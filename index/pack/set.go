package pack

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// Options of a set of packs.
type Options struct {
	Store     [16]byte // identity written into and demanded of every journal
	PackSize  int64    // bytes at which a new pack is begun
	FreeFloor int64    // bytes of the file system that Append leaves free
	Logger    *slog.Logger
	Storage   storage.Storage // where the packs are; default: this machine's file system
	Coder     *cipher.Coder   // encrypts slots and journals; nil: nothing is encrypted
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
	fs  storage.Storage

	commitMu sync.Mutex // one Commit, Kill or rewrite at a time

	mu        sync.Mutex
	files     map[uint32]*file
	active    *file // takes appends; nil until the first
	next      uint32
	ends      map[uint32]int64 // of journals with something behind: half a frame, or what a full disk refused
	pending   []Chunk          // written, not yet committed
	dirty     map[*file]bool   // written since the last sync
	condemned map[uint32]error // packs of which a sync failed, or of their journals; written with commitMu held, too
	unchecked int64            // bytes appended since free space was last looked at
	run       int64            // bytes appended since keys were last committed
	sizes     map[uint32]int64 // lengths when Reaches last looked; committed slots lie within, room ahead counts
}

// file is an open pack with its journal. end and journalEnd belong to Set.mu and Set.commitMu. journalEnd is asked for
// with Set.journalLen: it is unknown until somebody needs it, so that payload is read whatever becomes of the journal.
type file struct {
	n          uint32
	f          storage.File
	end        int64 // where the next slot goes
	journalEnd int64
	salt       cipher.Salt // of the key of what is appended
	room       int64       // up to where it may be allocated, see ahead
}

// unknown as journalEnd: the file system has not been asked yet.
const unknown = -1

// Name gives the file name of pack n.
func Name(n uint32) string { return fmt.Sprintf("%08d.pack", n) }

// JournalName gives the file name of its journal.
func JournalName(n uint32) string { return fmt.Sprintf("%08d.journal", n) }

// Open opens the set in dir, which must exist. It changes nothing there, and makes durable which names it holds: a
// process that was killed may have left some that are not, and all that is committed now builds on them.
func Open(dir string, o Options) (*Set, error) {
	s := &Set{dir: dir, o: o, files: map[uint32]*file{}, dirty: map[*file]bool{}, ends: map[uint32]int64{},
		condemned: map[uint32]error{}, next: 1, sizes: map[uint32]int64{}}
	if s.fs = o.Storage; s.fs == nil {
		s.fs = storage.Disk{}
	}
	f, err := s.list()
	if err = cmp.Or(err, s.fs.SyncDir(dir)); err != nil {
		return nil, err
	}
	s.next = f.highest + 1
	return s, nil
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
	return readJournal(s.fs, s.JournalPath(n), from, size, s.opener(n), s.checked(n, fn))
}

// Coder gives what encrypts; nil: nothing is encrypted.
func (s *Set) Coder() *cipher.Coder { return s.o.Coder }

// opener gives what decrypts the frames of the journal of pack n; nil: they are not encrypted.
func (s *Set) opener(n uint32) func([]byte) ([]byte, error) {
	if s.o.Coder == nil {
		return nil
	}
	return func(payload []byte) ([]byte, error) { return s.o.Coder.Open(cipher.ForPack(n), payload) }
}

// checked puts the check of a journal's header before fn.
func (s *Set) checked(n uint32, fn func(Record) error) func(Record) error {
	return func(r Record) error {
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
	}
}

// Resume makes pack n the one that takes appends, if it is the newest and both its files end where what they hold is
// known to end. Otherwise it has got all that it will: what lies behind is left as it is, and the next Append begins a
// new pack.
func (s *Set) Resume(n uint32, payloadEnd, journalEnd int64) (resumed bool, err error) {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active != nil || n+1 != s.next {
		return false, nil
	}
	f, err := s.open(n)
	if err != nil {
		return false, err
	}
	if st, err := s.fs.Stat(s.PackPath(n)); err != nil || st.Size != payloadEnd {
		return false, err
	}
	if st, err := s.fs.Stat(s.JournalPath(n)); err != nil || st.Size != journalEnd {
		return false, err
	}
	f.end, f.room, f.journalEnd = payloadEnd, payloadEnd, journalEnd
	s.takeAppends(f)
	return true, nil
}

// EndAt says that the journal of pack n ends at end: what lies behind is a frame that a crash left half written. It
// stays until the next frame is written.
func (s *Set) EndAt(n uint32, end int64) {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends[n] = end
	if f := s.files[n]; f != nil {
		f.journalEnd = end
	}
}

// NeverUse keeps the set from giving a new pack a number up to n.
func (s *Set) NeverUse(n uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n <= MaxNumber {
		s.next = max(s.next, n+1)
	}
}

// open gives pack n, opened at most once. Call with mu held.
func (s *Set) open(n uint32) (*file, error) {
	if f := s.files[n]; f != nil {
		return f, nil
	}
	if why, err := s.Missing(n); err != nil {
		return nil, err
	} else if why != "" {
		return nil, fmt.Errorf("pack %s: %w: %s", Name(n), ErrCorrupt, why)
	}
	h, err := s.fs.Open(s.PackPath(n), storage.Write|storage.Direct)
	if err != nil {
		return nil, err
	}
	f := &file{n: n, f: h, journalEnd: unknown}
	s.files[n] = f
	return f, nil
}

// journalLen gives where the next frame of the journal of pack n goes; f is the pack if it is open. What could not be
// asked is not taken for 0: a frame would then be written over the first ones. Call with commitMu held, without mu.
func (s *Set) journalLen(n uint32, f *file) (int64, error) {
	if f != nil && f.journalEnd != unknown {
		return f.journalEnd, nil
	}
	s.mu.Lock()
	size, torn := s.ends[n]
	s.mu.Unlock()
	if !torn {
		st, err := s.fs.Stat(s.JournalPath(n))
		if err != nil {
			return 0, err
		}
		size = st.Size
	}
	if f != nil {
		f.journalEnd = size
	}
	return size, nil
}

// Close closes all files. Uncommitted chunks are lost.
func (s *Set) Close() error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active != nil {
		s.cut(s.active)
	}
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.f.Close())
	}
	s.files, s.active = map[uint32]*file{}, nil
	return errors.Join(errs...)
}

// JournalSize gives the length of the journal of pack n in bytes. A frame that a Commit is just writing is not part of
// it.
func (s *Set) JournalSize(n uint32) (int64, error) {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	s.mu.Lock()
	f := s.files[n]
	s.mu.Unlock()
	return s.journalLen(n, f)
}
