// Package latest notices that the index shows root records that are not the latest. An index that has lost part of a
// table shows older records, or none, and says nothing of it; the journals have the latest.
//
// The index keeps a sum over all root records, by key and sequence, that is written with them. When a store is opened
// the sum is taken anew. Only where it is another one, or none is there, are the journals read.
package latest

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// Roots are the sequences of the root records that the index was given. It is not safe for concurrent use.
type Roots struct {
	seqs  map[string]uint64
	sum   uint64
	whole bool // they are all that the index was given
}

// Load reads what the index has. It says whether that is all that the index was given.
func (r *Roots) Load(db *keys.DB) (whole bool, err error) {
	r.seqs, r.sum, r.whole = map[string]uint64{}, 0, false
	err = db.Metas(manifest.RootPrefix, func(key string, seq uint64, _ []byte, err error) error {
		if err == nil {
			r.set(key, seq)
		}
		return nil // a damaged one is told of by whoever needs it
	})
	if err != nil {
		return false, err
	}
	sum, err := db.RootSum()
	if errors.Is(err, keys.ErrMissing) || errors.Is(err, keys.ErrDamaged) {
		return false, nil
	}
	r.whole = err == nil && sum == r.sum
	return r.whole, err
}

// Give notes in a batch that the index is given these records, too. Others than root records are left alone. Once the
// index has lost something its sum stays as it is, so that the loss is noticed again.
func (r *Roots) Give(b *keys.Batch, kvs []pack.KV) {
	given := false
	for _, kv := range kvs {
		if manifest.IsRootKey(kv.Key) {
			r.set(kv.Key, kv.Seq)
			given = true
		}
	}
	if given && r.whole {
		b.SetRootSum(r.sum)
	}
}

// Note writes the sum of what the index had when it was loaded and was given since. The caller has found that the
// journals tell of nothing later.
func (r *Roots) Note(b *keys.Batch) {
	r.whole = true
	b.SetRootSum(r.sum)
}

func (r *Roots) set(key string, seq uint64) {
	if r.seqs == nil {
		r.seqs = map[string]uint64{}
	}
	if was, ok := r.seqs[key]; ok {
		r.sum -= sumOf(key, was)
	}
	r.seqs[key] = seq
	r.sum += sumOf(key, seq)
}

// sumOf is eight bytes of a hash. A record of a draft, which no journal has, has the sequence 0 and does not count.
func sumOf(key string, seq uint64) uint64 {
	if seq == 0 {
		return 0
	}
	id := chunk.Sum(binary.LittleEndian.AppendUint64([]byte(key), seq))
	return binary.LittleEndian.Uint64(id[:])
}

// Journalled gives the latest record of each key that counts, without its value, of the journals of all packs but those
// to skip. bad is the pack whose journal could not be read.
func Journalled(packs *pack.Set, skip func(n uint32) bool, counts func(key string) bool) (
	told map[string]pack.KV, bad uint32, err error) {
	list, err := packs.Packs()
	if err != nil {
		return nil, 0, err
	}
	told = map[string]pack.KV{}
	for _, n := range list {
		if skip(n) {
			continue
		}
		_, _, err := packs.Read(n, 0, func(r pack.Record) error {
			if kv := r.KV; kv != nil && counts(kv.Key) && kv.Seq > told[kv.Key].Seq {
				told[kv.Key] = pack.KV{Seq: kv.Seq, Delete: kv.Delete}
			}
			return nil
		})
		if err != nil {
			return nil, n, err
		}
	}
	return told, 0, nil
}

// Behind wraps keys.ErrDamaged where the index shows older records than journals have told, or lacks some.
func Behind(db *keys.DB, told map[string]pack.KV) error {
	behind, example := 0, ""
	for key, kv := range told {
		seq, _, err := db.Meta(key)
		if keys.Failed(err) {
			return err
		}
		if errors.Is(err, keys.ErrMissing) && !kv.Delete || err == nil && seq < kv.Seq {
			behind, example = behind+1, key
		}
	}
	if behind > 0 {
		return fmt.Errorf("%w: it has lost what journals tell of %d checkpoints or moves, %s for one", keys.ErrDamaged,
			behind, example)
	}
	return nil
}
