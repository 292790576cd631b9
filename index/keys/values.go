package keys

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/dgraph-io/badger/v4"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// What keys and values look like, and how they are read.

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
