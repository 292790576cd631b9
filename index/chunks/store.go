package chunks

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/gpucr/gpucr-fs/index/arena"
	"github.com/gpucr/gpucr-fs/index/aside"
	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/distant"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/latest"
	"github.com/gpucr/gpucr-fs/index/live"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// Folders of a store: of Badger's files, and of packs with their journals.
const (
	IndexFolder = "index"
	PacksFolder = "packs"
)

// Store keeps chunks: their payload and journals in packs, and the index over them. It is safe for concurrent use.
type Store struct {
	DB     *keys.DB
	Packs  *pack.Set
	Coder  *chunk.Coder
	Arena  *arena.Arena
	Counts Counters
	Hooks  Hooks

	o       Options
	log     *slog.Logger
	ingest  *ingest
	moves   atomic.Uint64 // see CountMoves
	damage  damage
	live    *live.Slots
	Distant *distant.Packs
	Aside   *aside.List // what the store cannot account for

	records RootRecords
	older   error // not nil: the index shows older root records than the journals do; set by Recover

	commitMu      sync.Mutex       // one commit at a time; guards what follows up to over
	sweepMu       sync.RWMutex     // read: a chunk is looked up and pinned; write: chunks are forgotten
	seq           atomic.Uint64    // of the last metadata record
	unindexed     []pack.Chunk     // journalled, but Badger has not taken them yet
	unapplied     []pack.KV        // keys likewise
	deadUnindexed []pack.Chunk     // journalled as dead, and not yet taken out of Badger
	behind        atomic.Bool      // one of these three is not empty; read without commitMu
	marks         map[uint32]int64 // how far Badger has been given journals since it was synced; see syncIndex
	unsynced      int              // records that it has been given since
	unsettled     map[string]bool  // root keys that a failed commit may have left in a journal
	latest        latest.Roots     // what the index has been given
	over          bool             // the store is closing: nothing is committed any more

	pinMu      sync.Mutex
	pinners    map[*Pins]bool
	collecting bool // none of pinners is forgotten meanwhile

	lossMu    sync.Mutex
	losses    int   // how often chunks were lost to a failed sync
	lossCause error // the last time
}

// Options of a chunk store. All must be set.
type Options struct {
	Dir           string // of the store, for messages
	Logger        *slog.Logger
	Arena         *arena.Arena
	ReadOnly      bool  // nothing of the folder is changed
	Workers       int   // goroutines that encode and decode at once
	IngestWorkers int   // goroutines that hash, compress and append
	MaxChunk      int   // bytes of the largest chunk
	PackSize      int64 // bytes at which a new pack is begun
	CommitEvery   int64 // bytes appended between two commits while nothing is sealed
	ShrinkJournal int64 // bytes from which on it is looked at what a journal still tells
}

// RootRecords has the root records of checkpoints.
type RootRecords interface {
	// RootRecords gives what is to be told of the roots with these keys, as of one moment; nil for one that is no
	// more.
	RootRecords(keys []string) (payloads [][]byte, err error)
	// Stands says whether the checkpoint with this id is sealed or being written.
	Stands(id string) bool
}

// Counters are live.
type Counters struct {
	New, Dup, Stored atomic.Int64
}

// Hook is called at a moment that a test wants to do something in; nil outside of tests.
type Hook func()

// Run calls the hook if there is one.
func (h Hook) Run() {
	if h != nil {
		h()
	}
}

// Hooks are for tests.
type Hooks struct {
	Appended  Hook           // a chunk is in its pack, and its worker has told nobody yet
	Rewriting func(n uint32) // the journal of pack n has been read, to be written anew
	Moving    Hook           // the keys of a pack that is dropped have been read, to be journalled elsewhere
}

var errClosed = errors.New("the store is closed")

// New gives a store over an open index and open packs. It knows of no damage and of no records before it has
// recovered. Stop and Close end it.
func New(d *keys.DB, packs *pack.Set, o Options) (*Store, error) {
	coder, err := chunk.NewCoder(o.Workers, o.MaxChunk)
	if err != nil {
		return nil, &fault.Error{Op: "open store", Err: err}
	}
	s := &Store{
		o: o, log: o.Logger, DB: d, Packs: packs, Coder: coder, Arena: o.Arena, pinners: map[*Pins]bool{},
		damage: damage{slots: map[chunk.ID]pack.Loc{}, dirty: map[chunk.ID]bool{}, doomed: map[chunk.ID]pack.Loc{}},
		Aside:  aside.New(packs, PacksFolder), unsettled: map[string]bool{}, marks: map[uint32]int64{},
		Distant: distant.New(d, o.Logger, packs.Coder()), live: live.New(packs),
	}
	s.ingest = newIngest(s)
	return s, nil
}

// Stop ends the goroutines; nothing is stored or committed any more.
func (s *Store) Stop() {
	s.ingest.close()
	s.commitMu.Lock()
	s.over = true
	s.commitMu.Unlock()
}

// Close closes the files. Nobody may have a buffer of the arena any more.
func (s *Store) Close() error {
	s.Coder.Close()
	s.commitMu.Lock()
	if !s.DB.Cut() {
		_ = s.syncIndex() // what it can't note is read from the journals again
	}
	s.commitMu.Unlock()
	err := errors.Join(s.Packs.Close(), s.DB.Close())
	s.Arena.Close()
	return err
}

// MayWrite refuses what would change a store that is open for reading only, or whose index has lost root records.
func (s *Store) MayWrite(op string) error {
	if s.older != nil {
		return fault.Unreadable(op, s.o.Dir, IndexFolder, s.older)
	}
	if !s.o.ReadOnly {
		return nil
	}
	return &fault.Error{Class: fault.ReadOnly, Op: op, Hint: fault.ReadOnlyHint,
		Err: fmt.Errorf("the store is open for reading only: %s", s.o.Dir)}
}

// SetRoots says who has the root records. It is called before anything is committed.
func (s *Store) SetRoots(r RootRecords) { s.records = r }
