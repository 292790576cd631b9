package keys

import (
	"encoding/binary"
	"errors"

	"github.com/dgraph-io/badger/v4"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// Batch gathers writes. Badger may apply it in several steps, in order: what makes earlier writes count must come last. Each must be flushed once.
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
		if err != nil && !errors.Is(err, ErrMissing) && !errors.Is(err, ErrDamaged) {
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

// batchBytes bounds what a Badger batch holds in memory: it counts 60 bytes a value whatever the size, so it would not do so itself.
const batchBytes = 8 << 20

func (b *Batch) set(key, value []byte) {
	if b.err != nil {
		return
	}
	b.err = b.wb.Set(key, sealValue(key, value))
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
		b.err = b.d.written(b.wb.Flush())
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

// SetMark notes how far the journal of pack n has been applied, in bytes.
func (b *Batch) SetMark(n uint32, end int64) {
	b.noteSeq() // who finds the mark does not read the sequences of the journal again
	b.set(markKey(n), binary.LittleEndian.AppendUint64(nil, uint64(end)))
}

// DeleteChunk forgets a chunk.
func (b *Batch) DeleteChunk(id chunk.ID) { b.del(chunkKey(id)) }

// DeleteMeta deletes a metadata key.
func (b *Batch) DeleteMeta(key string) { b.del(metaKey(key)) }

// DeleteMark forgets the journal of pack n.
func (b *Batch) DeleteMark(n uint32) { b.del(markKey(n)) }

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
	return b.d.written(b.wb.Flush())
}

// Sync makes what was flushed durable.
func (d *DB) Sync() error {
	b, err := d.enter()
	if err != nil {
		return err
	}
	defer d.leave()
	if err := d.written(b.Sync()); err != nil {
		return err
	}
	d.t.Synced(d.dir)
	return nil
}

// Compact gives back what is dead of the value log.
func (d *DB) Compact() error {
	b, err := d.enter()
	if err != nil {
		return err
	}
	defer d.leave()
	for b.RunValueLogGC(0.5) == nil {
		continue // as long as a log file was rewritten
	}
	return nil
}
