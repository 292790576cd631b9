package keys

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/keys/sigbus"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// DB is Badger seen as the three things the store keeps in it. Badger answers a damaged value with an empty one and no
// error, so every value carries a sum over its key and itself.
//
//	'c' id            → Loc
//	'd' id            → Loc in a distant pack: one that lies in a bucket
//	'k' key           → metadata: u64 sequence, payload
//	's' "mark" u32    → how far the journal of a pack has been applied
//	's' "durable" u32 → how far it was on the disk when the index was given it
//	's' "seq"         → the highest sequence that metadata ever had, u64
//
// How a full disk is outlived is told in full_linux.go.
type DB struct {
	dir  string
	l    *slog.Logger
	room Room
	t    Tuning

	mu        sync.Mutex   // one mend or compaction at a time
	turn      sync.Mutex   // held while b is exchanged
	in        atomic.Int64 // who uses b; out while it is exchanged
	b         *badger.DB   // nil once a new index could not be opened
	closed    chan error   // gets the end of b's Close; nil before it
	unwritten error        // why Close did not wait for that
	ended     atomic.Bool  // Close was called
	failed    error        // why the last exchange failed, with turn held
	failedAt  time.Time    // and when
	log       badgerLog    // of b
	watch     atomic.Pointer[sigbus.Watch]
	bad       atomic.Bool   // Badger failed to write
	full      atomic.Uint64 // see syncLogs
	owes      atomic.Bool   // a compaction took SOUND away, and failed to put it back; set with mu held

	readOnly bool // see OpenReadOnly
}

var (
	// ErrMissing: there is no such key.
	ErrMissing = errors.New("not in the index")
	// ErrDamaged: there is, and what it holds is not what was written.
	ErrDamaged = errors.New("damaged index record")
	// ErrUnwritten: see [DB.Close].
	ErrUnwritten = errors.New("the index cannot be written; its log is left, and read when the store is opened again")
)

// Failed says whether the index gave no answer: err is neither ErrMissing nor ErrDamaged, which are answers.
func Failed(err error) bool {
	return err != nil && !errors.Is(err, ErrMissing) && !errors.Is(err, ErrDamaged)
}

// Tuning moves thresholds, for tests, and says with what values are encrypted. Zero values stand for the defaults.
type Tuning struct {
	Coder  *cipher.Coder    // encrypts all values; nil: none is
	Memory int64            // bytes gathered in memory before a table is written; default 8 MiB
	Synced func(dir string) // called after the index in dir was synced
	Wrote  func(dir string) // called after something was flushed to it, which is not synced yet
}

// defaultMemory is that of Tuning.
const defaultMemory = 8 << 20

// Open opens the index at dir, and makes it where there is none.
func Open(dir string, log *slog.Logger, r Room, t Tuning) (*DB, error) {
	d, err := newDB(dir, log, r, t)
	if err != nil {
		return nil, err
	}
	return d, d.open()
}

func newDB(dir string, log *slog.Logger, r Room, t Tuning) (*DB, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if t.Memory == 0 {
		t.Memory = defaultMemory
	}
	if t.Synced == nil {
		t.Synced = func(string) {}
	}
	if t.Wrote == nil {
		t.Wrote = func(string) {}
	}
	return &DB{dir: dir, l: log, room: r, t: t}, nil
}

func (d *DB) options(l badgerLog) badger.Options {
	return badger.DefaultOptions(d.dir).
		WithLogger(l).
		WithCompression(options.None).
		WithDetectConflicts(false).
		WithMetricsEnabled(false).
		WithValueThreshold(1 << 10).
		WithValueLogFileSize(64 << 20).
		WithMemTableSize(d.t.Memory).
		WithNumMemtables(2).
		WithBaseTableSize(d.t.Memory / 2).
		WithBlockCacheSize(0). // blocks are not compressed: the page cache serves
		WithIndexCacheSize(32 << 20).
		WithNumCompactors(2).
		// With it a damaged table is an error; unchecked, Badger panics over it.
		WithChecksumVerificationMode(options.OnTableAndBlockRead).
		WithVerifyValueChecksum(true). // else a wrong length leaves a file locked, and Close waits for ever
		WithNumGoroutines(2)
}

// open opens Badger. It fails with pack.ErrNoSpace where the disk has no room for what opening writes.
func (d *DB) open() error {
	if free, err := d.room.free(); err != nil {
		return err
	} else if free < openRoom {
		return fmt.Errorf("%w: %d KiB free, opening the index takes %d", pack.ErrNoSpace, free>>10, openRoom>>10)
	}
	if err := removeUnborn(d.dir); err != nil {
		return err
	}
	if err := makeDiscard(d.dir); err != nil {
		return err
	}
	var failed, opened atomic.Bool
	l := badgerLog{d.l, make(chan string), func() {
		if failed.Store(true); opened.Load() {
			d.condemn()
		}
	}}
	o := d.options(l)
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return err
	}
	if err := mayOpen(len(entries) + 2*spareFiles); err != nil { // Badger keeps all of them open
		return err
	}
	if err := checkIndex(d.dir, o); err != nil { // takes long, and is not to be done in vain
		return err
	}
	w, err := sigbus.New(filepath.Join(d.dir, soundName))
	if err != nil {
		return err
	}
	b, err := openSynced(o)
	opened.Store(true)
	if failed.Load() && !Lacks(err) {
		d.condemn()
	}
	if err != nil {
		w.Close()
		return err
	}
	d.b, d.log, d.closed, d.unwritten = b, l, nil, nil
	d.full.Store(0) // what another process has left may not be on the disk
	d.watch.Store(w)
	return nil
}

// removeUnborn removes the log files that a killed process had created and not yet given a size. They hold nothing, and
// Badger refuses to open over them.
func removeUnborn(dir string) error {
	entries, err := os.ReadDir(dir) // Glob would take characters of dir for a pattern
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext != ".vlog" && ext != ".mem" {
			continue
		}
		name := filepath.Join(dir, e.Name())
		if info, err := os.Stat(name); err != nil {
			return err
		} else if info.Size() > 0 {
			continue
		}
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	return nil
}

// openBadger opens it; what it panics over is damage.
func openBadger(o badger.Options) (b *badger.DB, err error) {
	defer func() { err = ofSystem(err) }()
	defer damageOfPanic(&err)
	return badger.Open(o)
}

// closeFailures is how often Badger may fail while it closes, which it reports once a second.
const closeFailures = 5

// Close closes Badger. Badger then writes its memory table to a file, and tries for ever if it cannot, as on a full
// disk or when somebody has removed the folder. In that case Close does not wait: what could not be written is in
// Badger's log, which the next open reads.
func (d *DB) Close() error {
	d.ended.Store(true)
	d.turn.Lock() // an exchange that is under way opens it again
	defer d.turn.Unlock()
	return d.close()
}

// close is Close for an exchange, too. Call with turn held.
func (d *DB) close() error {
	if d.b == nil {
		return nil
	}
	defer d.watch.Load().Close()
	if d.closed == nil {
		closed, b := make(chan error, 1), d.b
		d.closed = closed
		go func() { closed <- b.Close(); close(closed) }()
	} else if d.unwritten != nil {
		select {
		case err := <-d.closed:
			return err
		default:
			return d.unwritten
		}
	}
	for failures := 1; ; failures++ {
		select {
		case err := <-d.closed:
			return err
		case text := <-d.log.errs:
			if failures == closeFailures {
				d.unwritten = fmt.Errorf("%w: %w", ErrUnwritten, ofSystem(errors.New(text)))
				return d.unwritten
			}
		}
	}
}
