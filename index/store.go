package index

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/gpucr/gpucr-fs/index/accounting"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/learned"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/reading"
	"github.com/gpucr/gpucr-fs/index/roots"
	"github.com/gpucr/gpucr-fs/index/storage"
	"github.com/gpucr/gpucr-fs/index/unsealed"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// What a manifest encodes, a journal takes.
const _ = uint(pack.MaxValue - manifest.MaxRecord)

// Store is an open store. It is safe for concurrent use.
type Store struct {
	books    *accounting.Books
	upkeep   *upkeep.Jobs
	drafts   *drafts.Writer
	reading  *reading.Reader
	roots    *roots.Set
	chunks   *chunks.Store
	learned  *learned.Places
	unsealed *unsealed.Drafts // nil without a bucket
	dir      string
	config   Config
	o        Options
	log      *slog.Logger
	lock     io.Closer

	closed atomic.Bool
}

// Open opens the store at dir for reading and writing; one process at a time (Class InUse, with the holder in the
// text). It finishes what a crash left undone. Class ReadOnly where nothing can be written: with Options.ReadOnly it
// can be opened there, too.
func Open(ctx context.Context, dir string, o Options) (*Store, error) {
	o.setStorage()
	config, err := loadConfig(o.Storage, dir)
	if o.ReadOnly && fault.ClassOf(err) == fault.Corrupt {
		if again, noCopy := readConfigCopy(o.Storage, dir); noCopy == nil {
			config, err = again, nil
		}
	}
	if err != nil {
		return nil, err
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.setDefaults(config)
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, &fault.Error{Op: "open store", Err: err}
	}
	if err := CheckLayout(dir); err != nil {
		return nil, err
	}
	if o.ReadOnly {
		return openToRead(ctx, dir, config, o)
	}
	lock, err := lockStore(ctx, dir, &o)
	if err != nil {
		return nil, err
	}
	var s *Store
	if err = o.unlock(ctx, dir, config); err == nil {
		s, err = openLocked(ctx, dir, config, o, lock)
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return s, nil
}

// finishKilled makes durable which names a process that was killed has left in the store's folder, for all that is
// done now builds on them, and ends the exchange of an index that it had begun.
func finishKilled(st storage.Storage, dir string) error {
	if err := st.SyncDir(dir); err != nil {
		return err
	}
	return keys.FinishSwap(filepath.Join(dir, chunks.IndexFolder))
}

func openLocked(ctx context.Context, dir string, config Config, o Options, lock io.Closer) (*Store, error) {
	const op = "open store"
	dbDir := filepath.Join(dir, chunks.IndexFolder)
	packDir := filepath.Join(dir, chunks.PacksFolder)
	if _, err := o.Storage.Stat(packDir); errors.Is(err, os.ErrNotExist) {
		return nil, &fault.Error{Class: fault.Corrupt, Op: op, File: packDir, Err: err,
			Hint: "restore the folder from a backup"}
	} else if err != nil {
		return nil, fault.Classify(op, err)
	}
	if err := finishKilled(o.Storage, dir); err != nil {
		return nil, fault.Classify(op, err)
	}
	fresh, err := isFresh(o.Storage, dbDir, packDir)
	if err != nil {
		return nil, err
	}
	sound := fresh
	if !fresh {
		if _, err := os.Stat(filepath.Join(dbDir, "MANIFEST")); errors.Is(err, os.ErrNotExist) {
			return nil, &fault.Error{Class: fault.Corrupt, Op: op, File: dbDir, Err: errors.New("the index is gone"),
				Hint: fault.RepairHint(dir)}
		} else if err != nil {
			return nil, fault.Classify(op, err)
		}
		if sound, err = keys.IsSound(dbDir); err != nil {
			return nil, fault.Classify(op, err)
		}
	}
	if !sound {
		o.Logger.Warn("the index was cut short by a full disk, or a failure to write it, and is built anew",
			"store", dir)
		if _, err := rebuildIndex(ctx, dir, config, o); fault.IsNoSpace(err) {
			return nil, noRoomToOpen(err)
		} else if err != nil {
			return nil, err
		}
	}
	d, err := keys.Open(dbDir, o.Logger, keys.Room{Dir: dir, Floor: o.FreeFloor}, o.keys())
	if fault.IsNoSpace(err) {
		return nil, noRoomToOpen(err)
	}
	if keys.Lacks(err) {
		return nil, fault.Classify(op, err)
	}
	if err != nil {
		return nil, &fault.Error{Class: fault.Corrupt, Op: op, File: dbDir, Err: err, Hint: fault.RepairHint(dir)}
	}
	if fresh {
		if err := keys.DeclareSound(dbDir); err != nil {
			return nil, errors.Join(fault.Classify(op, err), d.Close())
		}
	}
	return openOver(dir, config, o, d, lock)
}

// openOver opens the store whose index is d. It closes d when it fails.
func openOver(dir string, config Config, o Options, d *keys.DB, lock io.Closer) (*Store, error) {
	packs, err := pack.Open(filepath.Join(dir, chunks.PacksFolder), o.packs(config))
	if err != nil {
		return nil, errors.Join(fault.Classify("open store", err), d.Close())
	}
	s, err := newStore(dir, config, o, d, packs)
	if err != nil {
		return nil, errors.Join(err, packs.Close(), d.Close())
	}
	if err := s.chunks.Recover(); err != nil {
		s.stop()
		return nil, err
	}
	if err := s.roots.Load(); err != nil {
		s.stop()
		return nil, err
	}
	if !o.ReadOnly {
		s.roots.SweepHotSets()
	}
	s.lock = lock
	return s, nil
}

func newStore(dir string, config Config, o Options, d *keys.DB, packs *pack.Set) (*Store, error) {
	s := &Store{
		dir: dir, config: config, o: o, log: o.Logger,
	}
	var err error
	s.chunks, err = chunks.New(d, packs, o.chunks(config, dir))
	if err != nil {
		return nil, err
	}
	s.chunks.Distant.SetSource(o.Distant)
	s.learned = learned.New(learned.Options{Dir: filepath.Join(dir, LearnedFolder), Floor: o.FreeFloor,
		Storage: o.Storage,
		Logger:  o.Logger, Sealed: o.coder != nil})
	s.chunks.Distant.SetOthers(s.learned)
	s.roots = roots.New(s.chunks, roots.Options{Dir: dir, Logger: o.Logger, FreeFloor: o.FreeFloor})
	s.reading = reading.New(s.chunks, s.roots,
		reading.Options{Dir: dir, CacheSize: o.CacheSize - o.spares(), OnRead: o.OnRead})
	if o.Distant != nil && !o.ReadOnly {
		s.unsealed = unsealed.New()
	}
	s.drafts = drafts.New(s.chunks, s.roots, s.reading, drafts.Options{
		Logger: o.Logger, Params: config.Chunk, Policy: policies[o.Compression], Cuts: o.Cuts, Labels: o.Labels,
		Unsealed: s.unsealed,
	})
	s.upkeep = upkeep.New(s.chunks, s.roots, s.reading, upkeep.Options{
		Dir: dir, ID: config.identity(), Logger: o.Logger, Storage: o.Storage, Workers: o.Workers,
		MaxChunk: config.Chunk.Max, ReadOnly: o.ReadOnly,
	})
	s.books = accounting.New(dir, s.chunks, s.roots, s.reading, s.upkeep)
	return s, nil
}

// noRoomToOpen is the error of a disk that is too full for a store to be opened. Its hint is not the usual one: rm and
// gc open the store, too.
func noRoomToOpen(err error) error {
	return &fault.Error{Class: fault.NoSpace, Op: "open store", Err: err,
		Hint: "free some space on the store's file system by other means; gpucr-fs rm and gc work again then"}
}

// isFresh says whether nothing was ever written: no packs, and an index that is empty, or was being made when its
// process was killed.
func isFresh(st storage.Storage, dbDir, packDir string) (bool, error) {
	unborn, err := keys.IsUnborn(dbDir)
	if err != nil {
		return false, fault.Classify("open store", err)
	}
	packs, err := st.List(packDir)
	return unborn && len(packs) == 0, err
}

// Close flushes and closes. Open drafts are left incomplete and reported as an error, and so are files still open.
func (s *Store) Close() error {
	if !s.closed.CompareAndSwap(false, true) {
		return nil
	}
	left := s.roots.Left()
	defer s.upkeep.CancelAndHold()()
	if err := s.chunks.RecordDamage(); err != nil {
		s.log.Warn("the damage that was met could not be recorded", "err", err,
			"hint", "gpucr-fs verify finds it again")
	}
	if err := s.chunks.Settle(); err != nil {
		s.log.Warn("what failed earlier could not be taken back: a checkpoint whose seal failed may be there when "+
			"the store is opened again",
			"err", err)
	}
	err := s.stop()
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	if len(left) > 0 {
		err = errors.Join(err, &fault.Error{Class: fault.InUse, Op: "close store", Err: errors.Join(left...)})
	}
	return err
}

// stop ends the goroutines and closes the files.
func (s *Store) stop() error {
	s.upkeep.Cancel()
	s.chunks.Stop()
	s.reading.DropCache()
	return errors.Join(s.learned.Close(), s.chunks.Close())
}

// Dir gives the absolute path of the store.
func (s *Store) Dir() string { return s.dir }

// Config gives the parameters of the store.
func (s *Store) Config() Config { return s.config }

// Stats gives live counters.
func (s *Store) Stats() Stats {
	free, _ := s.chunks.Packs.Free() // 0 where the file system does not say
	c, w, in := &s.reading.Counts, &s.drafts.Counts, &s.chunks.Counts
	return Stats{
		Hits: c.Hits.Load(), Misses: c.Misses.Load(), BytesRead: c.Read.Load(), BytesFetched: c.Fetched.Load(),
		BytesWritten: w.Written.Load(),
		BytesStored:  in.Stored.Load(), ChunksNew: in.New.Load(), ChunksDup: in.Dup.Load(), ZeroBytes: w.Zero.Load(),
		CacheBytes: s.reading.CacheBytes(), Errors: c.Errors.Load(), OpenDrafts: int64(s.roots.Writers()),
		FreeBytes: free,
	}
}
