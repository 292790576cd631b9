package distant

import (
	"errors"
	"maps"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/object"
)

// forgetChunks is how many chunks of forgotten packs are looked for elsewhere at once: it bounds memory.
const forgetChunks = 1 << 20

// Hold keeps packs that become known from now on, until release is called. A checkpoint that needs them is committed
// only later, and Forget is called with what was needed before.
func (d *Packs) Hold() (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.holds++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.holds--; d.holds == 0 {
			clear(d.touched)
		}
	}
}

// Forget gives back what is known of packs that nothing needs: no checkpoint of this store, as needed says by the
// pack's number, and none of the bucket, as stands says. It gives how many these are. The caller has called Hold before
// it looked at what is needed. Their numbers stay used: what is left of a pack is a key without a value.
func (d *Packs) Forget(needed func(uint32) bool, stands func(object.Name) bool, commit func([]keys.Put) error) (
	forgotten int, err error,
) {
	d.learnMu.Lock()
	defer d.learnMu.Unlock()
	gone := map[uint32]bool{}
	d.mu.Lock()
	for n, p := range d.packs {
		if !d.touched[n] && !needed(n) && !stands(p.Name) {
			gone[n] = true
		}
	}
	d.mu.Unlock()
	some, ids := map[uint32]bool{}, map[chunk.ID]bool{}
	forget := func() error {
		err := d.settleElsewhere(gone, ids)
		if err == nil {
			err = d.forget(some, commit)
		}
		if err != nil {
			return fault.Classify("forget packs of the bucket", err)
		}
		forgotten += len(some)
		clear(some)
		clear(ids)
		return nil
	}
	for n := range maps.Clone(gone) {
		_, v, err := d.db.Meta(keyOf(n))
		if err == nil {
			_, err = d.decode(n, v, func(c pack.Chunk) { ids[c.ID] = true })
		}
		if err != nil {
			continue // what is damaged is told of elsewhere, and stays
		}
		if some[n] = true; len(ids) >= forgetChunks {
			if err := forget(); err != nil {
				return forgotten, err
			}
		}
	}
	if len(some) == 0 {
		return forgotten, nil
	}
	return forgotten, forget()
}

// settleElsewhere gives the index the places of chunks in packs that are not gone, before those go.
func (d *Packs) settleElsewhere(gone map[uint32]bool, ids map[chunk.ID]bool) error {
	b := d.db.Batch()
	err := d.db.Metas(prefix, func(key string, _ uint64, payload []byte, err error) error {
		if m, ok := numberOf(key); ok && err == nil && len(payload) > 0 && !gone[m] {
			_, _ = d.decode(m, payload, func(c pack.Chunk) { // what is damaged of it shows elsewhere
				if ids[c.ID] {
					b.SetDistant(c)
				}
			})
		}
		return nil
	})
	return errors.Join(err, b.Flush())
}

// bury writes that nothing is known of packs any more, and forgets them.
func (d *Packs) forget(some map[uint32]bool, commit func([]keys.Put) error) error {
	puts := make([]keys.Put, 0, len(some))
	for n := range some {
		puts = append(puts, keys.Put{Key: keyOf(n), Payload: []byte{}})
	}
	if err := commit(puts); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for n := range some {
		if name := d.packs[n].Name; d.numbers[name] == n { // else another number has taken its place
			delete(d.numbers, name)
		}
		delete(d.packs, n)
		delete(d.shunned, n)
	}
	return nil
}

// unindex takes the chunks of a forgotten pack out of the index, as far as that is known to have them. Where it has not
// got what was said of the pack, as while journals are read anew, reindex has to put right what this leaves.
func (d *Packs) unindex(b *keys.Batch, n uint32) {
	_, v, err := d.db.Meta(keyOf(n))
	if err != nil || len(v) == 0 {
		d.unsettled = true
		return
	}
	_, err = d.decode(n, v, func(c pack.Chunk) {
		if loc, err := d.db.DistantLoc(c.ID); err == nil && loc.Pack == n {
			b.DeleteDistant(c.ID)
		}
	})
	if err != nil {
		d.unsettled = true
	}
}

// reindex gives the index all chunks of the packs that are known, where it may have the places of forgotten ones.
func (d *Packs) reindex() error {
	if !d.unsettled || d.db.ReadOnly() {
		return nil
	}
	b := d.db.Batch()
	err := d.db.Metas(prefix, func(key string, _ uint64, payload []byte, err error) error {
		if n, ok := numberOf(key); ok && err == nil && len(payload) > 0 {
			_, _ = d.decode(n, payload, b.SetDistant)
		}
		return nil
	})
	if err = errors.Join(err, b.Flush()); err == nil {
		d.unsettled = false
	}
	return err
}
