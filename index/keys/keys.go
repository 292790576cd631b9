package keys

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/crc32c"
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

func chunkKey(id chunk.ID) []byte   { return append([]byte{'c'}, id[:]...) }
func distantKey(id chunk.ID) []byte { return append([]byte{'d'}, id[:]...) }
func metaKey(key string) []byte     { return append([]byte{'k'}, key...) }
func markKey(n uint32) []byte       { return binary.BigEndian.AppendUint32([]byte("smark"), n) }
func durableKey(n uint32) []byte    { return binary.BigEndian.AppendUint32([]byte("sdurable"), n) }

var (
	seqKey   = []byte("sseq")
	rootsKey = []byte("sroots")
)

// sealValue encrypts the value where that is wanted, and appends the sum over key and value.
func (d *DB) sealValue(key, value []byte) []byte {
	if d.t.Coder != nil {
		value = d.t.Coder.Seal(cipher.ForIndex+string(key), value)
	}
	sum := crc32c.Update(crc32c.Checksum(key), value)
	return binary.LittleEndian.AppendUint32(value, sum)
}

// openValue undoes sealValue.
func (d *DB) openValue(key, sealed []byte) ([]byte, error) {
	if len(sealed) < 4 {
		return nil, ErrDamaged
	}
	value := sealed[:len(sealed)-4]
	if crc32c.Update(crc32c.Checksum(key), value) != binary.LittleEndian.Uint32(sealed[len(value):]) {
		return nil, ErrDamaged
	}
	if d.t.Coder == nil {
		return value, nil
	}
	value, err := d.t.Coder.Open(cipher.ForIndex+string(key), value)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return value, nil
}

// get gives a copy of the value at key, ErrMissing or ErrDamaged.
func (d *DB) get(key []byte) (out []byte, err error) {
	defer damageOfPanic(&err)
	b, err := d.enter()
	if err != nil {
		return nil, err
	}
	defer d.leave()
	err = b.View(func(txn *badger.Txn) error {
		item, err := txn.Get(key)
		if err != nil {
			return err
		}
		v, err := item.ValueCopy(nil)
		if err != nil {
			return fmt.Errorf("%w: %v", ErrDamaged, err)
		}
		out, err = d.openValue(key, v)
		return err
	})
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, ErrMissing
	}
	return out, err
}

// damageOfPanic turns a panic of Badger over a table it cannot parse into an error.
func damageOfPanic(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: %v", ErrDamaged, p)
	}
}

// Loc gives the location of a chunk, ErrMissing or ErrDamaged.
func (d *DB) Loc(id chunk.ID) (pack.Loc, error) {
	v, err := d.get(chunkKey(id))
	if err != nil {
		return pack.Loc{}, err
	}
	return pack.DecodeLoc(v)
}

// DistantLoc gives the location of a chunk in a distant pack, ErrMissing or ErrDamaged.
func (d *DB) DistantLoc(id chunk.ID) (pack.Loc, error) {
	v, err := d.get(distantKey(id))
	if err != nil {
		return pack.Loc{}, err
	}
	return pack.DecodeLoc(v)
}

// maxSteps is how many keys Locs passes over before it looks the next one up: a step costs a tenth of that.
const maxSteps = 16

// Locs gives the locations of many chunks; that of a chunk which the index lacks, or whose record is damaged, is zero.
// It goes through the keys in their order: in an index without others each costs 0.3 µs where loc takes 1.1, among
// sixteen times as many 1.2 where Loc takes 2.7 (BenchmarkLocate).
func (d *DB) Locs(ids []chunk.ID) (out []pack.Loc, err error) {
	defer damageOfPanic(&err)
	out = make([]pack.Loc, len(ids))
	order := make([]int32, len(ids))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return bytes.Compare(ids[a][:], ids[b][:]) })
	b, err := d.enter()
	if err != nil {
		return nil, err
	}
	defer d.leave()
	err = b.View(func(txn *badger.Txn) error {
		o := badger.DefaultIteratorOptions
		o.PrefetchValues = false
		o.Prefix = []byte{'c'}
		it := txn.NewIterator(o)
		defer it.Close()
		steps := 0 // fewer where they did not lead there, more where they did
		for _, i := range order {
			key := chunkKey(ids[i])
			before := func() bool { return it.Valid() && bytes.Compare(it.Item().Key(), key) < 0 }
			for n := steps; n > 0 && before(); n-- {
				it.Next()
			}
			if steps == 0 || before() {
				it.Seek(key)
				steps = max(1, steps/2)
			} else {
				steps = min(2*steps, maxSteps)
			}
			if !it.Valid() || !bytes.Equal(it.Item().Key(), key) {
				continue
			}
			it.Item().Value(func(sealed []byte) error {
				if v, err := d.openValue(key, sealed); err == nil {
					out[i], _ = pack.DecodeLoc(v)
				}
				return nil
			})
		}
		return nil
	})
	return out, err
}

// Meta gives the sequence and payload at a metadata key.
func (d *DB) Meta(key string) (uint64, []byte, error) {
	v, err := d.get(metaKey(key))
	if err != nil {
		return 0, nil, err
	}
	return splitMeta(v)
}

func splitMeta(v []byte) (uint64, []byte, error) {
	if len(v) < 8 || binary.LittleEndian.Uint64(v) > pack.MaxSeq {
		return 0, nil, ErrDamaged
	}
	return binary.LittleEndian.Uint64(v), v[8:], nil
}

// Mark gives how far the journal of pack n has been applied, in bytes; 0 where nothing is known.
func (d *DB) Mark(n uint32) (int64, error) { return d.length(markKey(n)) }

// Durable gives how far the journal of pack n is known to have been on the disk, in bytes: as far as its mark, or
// farther. What the journal lacks before is damage, not what a crash has left.
func (d *DB) Durable(n uint32) (int64, error) {
	mark, err := d.Mark(n)
	if err != nil {
		return 0, err
	}
	end, err := d.length(durableKey(n))
	return max(mark, end), err
}

// length gives a number of bytes; 0 where there is none.
func (d *DB) length(key []byte) (int64, error) {
	v, err := d.get(key)
	if errors.Is(err, ErrMissing) {
		return 0, nil
	}
	if err == nil && len(v) != 8 {
		err = ErrDamaged
	}
	if err != nil {
		return 0, err
	}
	return int64(binary.LittleEndian.Uint64(v)), nil
}

// Seq gives the highest sequence that a metadata record ever had, of deleted ones too. ErrMissing where the index was
// written before it was noted.
func (d *DB) Seq() (uint64, error) {
	v, err := d.get(seqKey)
	if err != nil {
		return 0, err
	}
	if len(v) != 8 || binary.LittleEndian.Uint64(v) > pack.MaxSeq {
		return 0, ErrDamaged
	}
	return binary.LittleEndian.Uint64(v), nil
}

// RootSum gives what SetRootSum noted.
func (d *DB) RootSum() (uint64, error) {
	v, err := d.get(rootsKey)
	if err == nil && len(v) != 8 {
		err = ErrDamaged
	}
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(v), nil
}

// Marks calls fn for every pack that has a mark.
func (d *DB) Marks(fn func(n uint32)) error {
	prefix := markKey(0)[:len(markKey(0))-4]
	return d.scan(prefix, false, func(key, _ []byte, _ error) error {
		if len(key) == len(prefix)+4 {
			fn(binary.BigEndian.Uint32(key[len(prefix):]))
		}
		return nil
	})
}

// Metas calls fn for every metadata key with the prefix, in order. A damaged record comes with err set. The payload is
// valid during the call.
func (d *DB) Metas(prefix string, fn func(key string, seq uint64, payload []byte, err error) error) error {
	return d.scan(metaKey(prefix), true, func(key, value []byte, err error) error {
		var seq uint64
		var payload []byte
		if err == nil {
			seq, payload, err = splitMeta(value)
		}
		return fn(string(key[1:]), seq, payload, err)
	})
}

// scan calls fn for every key with the prefix, in order.
func (d *DB) scan(prefix []byte, values bool, fn func(key, value []byte, err error) error) (err error) {
	defer damageOfPanic(&err)
	b, err := d.enter()
	if err != nil {
		return err
	}
	defer d.leave()
	return b.View(func(txn *badger.Txn) error {
		o := badger.DefaultIteratorOptions
		o.Prefix = prefix
		o.PrefetchValues = values
		o.PrefetchSize = 16
		it := txn.NewIterator(o)
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			item := it.Item()
			key := item.Key()
			if !values {
				if err := fn(key, nil, nil); err != nil {
					return err
				}
				continue
			}
			err := item.Value(func(v []byte) error {
				value, err := d.openValue(key, v)
				return fn(key, value, err)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Chunks calls fn for every chunk, by id. A damaged record comes with err set.
func (d *DB) Chunks(fn func(id chunk.ID, loc pack.Loc, err error) error) error {
	return d.scan([]byte{'c'}, true, func(key, value []byte, err error) error {
		var loc pack.Loc
		if err == nil {
			loc, err = pack.DecodeLoc(value)
		}
		return fn(chunk.ID(key[1:]), loc, err)
	})
}

// CountChunks gives the number of chunks.
func (d *DB) CountChunks() (n int64, err error) {
	err = d.scan([]byte{'c'}, false, func([]byte, []byte, error) error { n++; return nil })
	return n, err
}

// MetaKeys calls fn for every metadata key with the prefix, in order, without reading what is there.
func (d *DB) MetaKeys(prefix string, fn func(key string) error) error {
	return d.scan(metaKey(prefix), false, func(key, _ []byte, _ error) error { return fn(string(key[1:])) })
}
