package keys

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dgraph-io/badger/v4"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// Put is a metadata key to write; a nil payload deletes it.
type Put struct {
	Key     string
	Payload []byte
}

// Batch gathers writes. Badger may apply it in several steps, in order: what makes earlier writes count must come last.
// Each must be flushed once.
type Batch struct {
	d     *DB
	b     *badger.DB // nil: there is none, as err says
	wb    *badger.WriteBatch
	bytes int
	seq   uint64            // to be noted; see Later
	later bool              // it is
	told  map[string]uint64 // see Newest
	err   error
}

// Batch begins one. Where the disk is or was full it first looks whether there is room again.
func (d *DB) Batch() *Batch {
	out := &Batch{d: d}
	if d.readOnly {
		out.err = ErrReadOnly
		return out
	}
	if out.err = d.ready(); out.err != nil {
		return out
	}
	if out.b, out.err = d.enter(); out.err == nil {
		out.wb = out.b.NewWriteBatch()
	}
	return out
}

// Later notes that a metadata record has the sequence seq: see [DB.Seq]. Batches that note one must not be gathered at
// the same time.
func (b *Batch) Later(seq uint64) {
	if b.err != nil {
		return
	}
	if !b.later {
		before, err := b.d.Seq()
		if Failed(err) {
			b.err = err
			return
		}
		b.seq, b.later = before, true
	}
	b.seq = max(b.seq, seq)
}

// Newest says whether seq is higher than any that it was asked about for this key before: the index itself does not
// know yet what the batch gathers.
func (b *Batch) Newest(key string, seq uint64) bool {
	if before, ok := b.told[key]; ok && before >= seq {
		return false
	}
	if b.told == nil {
		b.told = map[string]uint64{}
	}
	b.told[key] = seq
	return true
}

// noteSeq writes what Later was told.
func (b *Batch) noteSeq() {
	if b.later {
		b.later = false
		b.set(seqKey, binary.LittleEndian.AppendUint64(nil, b.seq))
	}
}

// batchBytes bounds what a Badger batch holds in memory: it counts 60 bytes a value whatever the size, so it would not
// do so itself.
const batchBytes = 8 << 20

func (b *Batch) set(key, value []byte) {
	if b.err != nil {
		return
	}
	b.err = b.wb.Set(key, b.d.sealValue(key, value))
	b.bytes += len(key) + len(value)
	b.turn()
}

func (b *Batch) del(key []byte) {
	if b.err != nil {
		return
	}
	b.err = b.wb.Delete(key)
	b.bytes += len(key)
	b.turn()
}

func (b *Batch) turn() {
	if b.err == nil && b.bytes > batchBytes {
		b.err = b.flush()
		b.wb, b.bytes = b.b.NewWriteBatch(), 0
	}
}

// SetChunk says where a chunk is.
func (b *Batch) SetChunk(c pack.Chunk) { b.set(chunkKey(c.ID), pack.AppendLoc(nil, c.Loc)) }

// SetDistant says where a chunk is in a distant pack.
func (b *Batch) SetDistant(c pack.Chunk) { b.set(distantKey(c.ID), pack.AppendLoc(nil, c.Loc)) }

// DeleteDistant forgets that a chunk is in a distant pack.
func (b *Batch) DeleteDistant(id chunk.ID) { b.del(distantKey(id)) }

// SetMeta sets a metadata key.
func (b *Batch) SetMeta(key string, seq uint64, payload []byte) {
	b.set(metaKey(key), append(binary.LittleEndian.AppendUint64(make([]byte, 0, 12+len(payload)), seq), payload...))
}

// SetRootSum notes the sum over all root records: see package latest.
func (b *Batch) SetRootSum(sum uint64) { b.set(rootsKey, binary.LittleEndian.AppendUint64(nil, sum)) }

// SetMark notes how far the journal of pack n has been applied, in bytes.
func (b *Batch) SetMark(n uint32, end int64) {
	b.noteSeq() // who finds the mark does not read the sequences of the journal again
	b.set(markKey(n), binary.LittleEndian.AppendUint64(nil, uint64(end)))
}

// DeleteChunk forgets a chunk.
func (b *Batch) DeleteChunk(id chunk.ID) { b.del(chunkKey(id)) }

// DeleteMeta deletes a metadata key.
func (b *Batch) DeleteMeta(key string) { b.del(metaKey(key)) }

// SetDurable notes that the journal of pack n is on the disk up to end; see [DB.Durable]. It may be in one batch with
// what that part of the journal says. SetMark may not, for a mark keeps the journal from being read again.
func (b *Batch) SetDurable(n uint32, end int64) {
	b.set(durableKey(n), binary.LittleEndian.AppendUint64(nil, uint64(end)))
}

// DeleteMark forgets the journal of pack n.
func (b *Batch) DeleteMark(n uint32) {
	b.del(markKey(n))
	b.del(durableKey(n))
}

// Flush writes what was gathered.
func (b *Batch) Flush() error {
	if b.b == nil {
		return b.err
	}
	defer b.d.leave()
	b.noteSeq()
	if b.err != nil {
		b.wb.Cancel()
		return b.err
	}
	err := b.flush()
	b.d.t.Wrote(b.d.dir)
	return err
}

// flush gives Badger what was gathered since the last one.
func (b *Batch) flush() error {
	if err := mayOpen(spareFiles); err != nil {
		b.wb.Cancel()
		return err
	}
	return b.d.written(b.wb.Flush())
}

// Sync makes what was flushed durable.
func (d *DB) Sync() error {
	if _, err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	owes := d.owes.Load() && d.mu.TryLock() // else a compaction is under way
	if owes {
		defer d.mu.Unlock()
	}
	if err := d.written(d.syncLogs()); err != nil {
		return err
	}
	d.t.Synced(d.dir) // before the declaration: once that is there, no crash brings back less
	if owes {
		_ = d.declare() // the next one tries again
	}
	return nil
}

// declare declares the index sound, as is owed. Call with mu held, after all logs were synced.
func (d *DB) declare() error {
	err := DeclareSound(d.dir)
	d.owes.Store(err != nil)
	if d.Cut() { // meanwhile
		d.condemn()
	}
	return err
}

// syncLogs syncs all logs that may hold what is not on the disk yet. Badger's own Sync (4.9) does so for the two that
// it is writing to, and leaves out those that are full: of memory that waits to become a table, and of values.
func (d *DB) syncLogs() error {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return err
	}
	full := d.full.Load() // logs of values below it are on the disk, and get nothing any more
	newest := full
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if ext == ".vlog" {
			n, err := strconv.ParseUint(strings.TrimSuffix(e.Name(), ext), 10, 32)
			if err != nil || n < full {
				continue
			}
			newest = max(newest, n)
		} else if ext != ".mem" {
			continue
		}
		if err := syncFile(filepath.Join(d.dir, e.Name())); err != nil {
			return err
		}
	}
	// Badger does not see to it that the names of new files are on the disk.
	if err := (storage.Disk{}).SyncDir(d.dir); err != nil {
		return err
	}
	for {
		if now := d.full.Load(); now >= newest || d.full.CompareAndSwap(now, newest) {
			return nil
		}
	}
}

// Compact gives back what is dead of the value log.
func (d *DB) Compact() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	b, err := d.enter()
	if err != nil {
		return err
	}
	defer d.leave()
	if d.Cut() {
		return nil // the next write copies the index
	}
	if err := mayOpen(spareFiles); err != nil {
		return err
	}
	// Badger may write where values have gone before these are on the disk. If a power cut leaves values without their
	// files, the next Open builds the index anew.
	sound, err := IsSound(d.dir)
	if err != nil {
		return err
	}
	if sound {
		d.owes.Store(true)
		if err := errors.Join(os.Remove(filepath.Join(d.dir, soundName)), storage.Disk{}.SyncDir(d.dir)); err != nil {
			return err
		}
	}
	for again := true; again && err == nil; {
		again, err = d.compactLog(b)
	}
	if err == nil {
		err = d.written(d.syncLogs())
	}
	if err != nil {
		return err
	}
	d.t.Synced(d.dir)
	if d.owes.Load() {
		return d.declare()
	}
	return nil
}

// compactLog writes what is alive of one log of values to another, and removes it. done is false where none is worth
// it. Badger does not remove a log as long as there is an iterator: that holds it back until the other is on the disk.
func (d *DB) compactLog(b *badger.DB) (done bool, err error) {
	txn := b.NewTransaction(false)
	defer txn.Discard()
	it := txn.NewIterator(badger.IteratorOptions{})
	defer it.Close()
	if b.RunValueLogGC(0.5) != nil {
		return false, nil
	}
	return true, d.written(d.syncLogs())
}
