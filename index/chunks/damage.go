package chunks

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// damagePrefix begins the keys under which damage is recorded: the id of a chunk, and as value the slot in which it
// was found damaged. Like all keys they are journalled, so they outlive the index.
//
// A record speaks of one slot. When the chunk is stored anew, its location is another one and the record means
// nothing for it any more; it stays as long as the chunk does, so that nobody trusts a location that he looked up
// before. It is deleted when that very slot is found sound, and with the chunk.
const damagePrefix = "damage/"

func damageKey(id chunk.ID) string { return damagePrefix + id.String() }

// damage is what is known of damaged chunks.
type damage struct {
	mu    sync.Mutex
	slots map[chunk.ID]pack.Loc
	dirty map[chunk.ID]bool // what the journals do not tell yet
	// doomed are slots that a journal may call dead though the index has them: see avoid. That they can be read changes
	// nothing about it, so verify does not forget them.
	doomed map[chunk.ID]pack.Loc
}

// loadDamage reads the records of damage.
func (s *Store) loadDamage() error {
	err := s.DB.Metas(damagePrefix, func(key string, _ uint64, payload []byte, err error) error {
		id, loc, err := decodeDamage(key, payload, err)
		if err != nil {
			s.log.Error("a record of damage cannot be read", "key", key, "err", err,
				"hint", "gpucr-fs verify finds the damage again")
			return nil
		}
		s.damage.slots[id] = loc
		return nil
	})
	return fault.Classify("open store", err)
}

func decodeDamage(key string, payload []byte, err error) (id chunk.ID, loc pack.Loc, _ error) {
	if err == nil {
		loc, err = pack.DecodeLoc(payload)
	}
	b, e := hex.DecodeString(key[len(damagePrefix):])
	if err = errors.Join(err, e); err == nil && len(b) != len(id) {
		err = fmt.Errorf("%w: an id of %d digits", keys.ErrDamaged, 2*len(b))
	}
	copy(id[:], b)
	return id, loc, err
}

// IsDamaged says whether the chunk was found damaged at this very place, or may be gone from there.
func (s *Store) IsDamaged(id chunk.ID, loc pack.Loc) bool {
	s.damage.mu.Lock()
	defer s.damage.mu.Unlock()
	at, ok := s.damage.slots[id]
	if ok && at.Pack == loc.Pack && at.Page == loc.Page {
		return true
	}
	at, ok = s.damage.doomed[id]
	return ok && at.Pack == loc.Pack && at.Page == loc.Page
}

// KnownDamaged says whether the chunk was found damaged anywhere: where it lies may have changed since.
func (s *Store) KnownDamaged(id chunk.ID) bool {
	s.damage.mu.Lock()
	defer s.damage.mu.Unlock()
	_, ok := s.damage.slots[id]
	return ok
}

// SetDamaged remembers that a chunk is damaged where it lies: when its content comes by again it is stored anew, which
// heals every checkpoint that uses it. The next commit makes that durable. news: it was not known.
func (s *Store) SetDamaged(id chunk.ID, loc pack.Loc) (news bool) {
	if now, err := s.Locate(id); err == nil && now != loc {
		return false // it has been stored anew elsewhere
	}
	d := &s.damage
	d.mu.Lock()
	defer d.mu.Unlock()
	if at, ok := d.slots[id]; ok && at == loc {
		return false
	}
	d.slots[id] = loc
	d.dirty[id] = true
	return true
}

// SetSound forgets that a chunk was damaged at this place.
func (s *Store) SetSound(c pack.Chunk) {
	d := &s.damage
	d.mu.Lock()
	defer d.mu.Unlock()
	if at, ok := d.slots[c.ID]; ok && at == c.Loc {
		delete(d.slots, c.ID)
		d.dirty[c.ID] = true
	}
}

// forgetDamage forgets chunks that are no longer in the store.
func (s *Store) forgetDamage(gone []pack.Chunk) {
	d := &s.damage
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range gone {
		if d.doomed[c.ID] == c.Loc {
			delete(d.doomed, c.ID)
		}
		if _, ok := d.slots[c.ID]; ok {
			delete(d.slots, c.ID)
			d.dirty[c.ID] = true
		}
	}
}

// tellHealed logs that a chunk that had been damaged was stored anew.
func (s *Store) tellHealed(id chunk.ID) {
	if s.KnownDamaged(id) {
		s.log.Info("a damaged chunk was stored anew", "chunk", id.String())
	}
}

// takePuts gives the keys that tell what the journals do not tell yet, and counts them as told.
func (d *damage) takePuts() (puts []Put, ids []chunk.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id := range d.dirty {
		p := Put{Key: damageKey(id)}
		if loc, ok := d.slots[id]; ok {
			p.Payload = pack.AppendLoc(nil, loc)
		}
		puts = append(puts, p)
	}
	ids = slices.Collect(maps.Keys(d.dirty))
	clear(d.dirty)
	return puts, ids
}

// untell takes takePuts back.
func (d *damage) untell(ids []chunk.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range ids {
		d.dirty[id] = true
	}
}

// RecordDamage makes durable what is known of damage; a store that is open for reading only keeps it in memory.
func (s *Store) RecordDamage() error {
	if s.o.ReadOnly {
		return nil
	}
	s.damage.mu.Lock()
	n := len(s.damage.dirty)
	s.damage.mu.Unlock()
	if n == 0 {
		return nil
	}
	return s.Commit(nil)
}

// Unreadable tells of a chunk that a reader could not read, once.
func (s *Store) Unreadable(id chunk.ID, loc pack.Loc, err error) {
	if loc.Distant() {
		return // nothing here is damaged, and the bucket may give the right bytes the next time
	}
	if keys.Lacks(err) {
		return // a lack of descriptors or memory tells nothing of the chunk
	}
	if (errors.Is(err, pack.ErrCorrupt) || errors.Is(err, keys.ErrDamaged)) && s.SetDamaged(id, loc) {
		s.log.Error("unreadable chunk", "chunk", id.String(), "err", err)
		s.ingest.commitSoon()
	}
}
