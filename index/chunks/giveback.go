package chunks

import (
	"errors"
	"strings"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/distant"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// avoid sees to it that nobody is told of these chunks while they are in the index, as if they were damaged.
func (s *Store) avoid(chunks []pack.Chunk) {
	s.damage.mu.Lock()
	defer s.damage.mu.Unlock()
	for _, c := range chunks {
		s.damage.doomed[c.ID] = c.Loc
	}
}

// DeadSlots gives the slots, by page, that the journal of pack n calls dead from mark on.
func (s *Store) DeadSlots(n uint32, mark int64) (map[uint32]bool, error) {
	dead := map[uint32]bool{}
	_, _, err := s.Packs.Read(n, mark, func(r pack.Record) error {
		if r.Dead != nil {
			dead[r.Dead.Loc.Page] = true
		}
		return nil
	})
	return dead, err
}

// rewriteJournal writes the journal of pack n anew, so that it holds just chunks and kvs. The mark goes first: one
// beyond the end of a journal always means that the journal has lost something. It gives the length of the new
// journal.
func (s *Store) rewriteJournal(n uint32, chunks []pack.Chunk, kvs []pack.KV) (int64, error) {
	if err := s.forgetMark(n); err != nil {
		return 0, err
	}
	mark, err := s.Packs.RewriteJournal(n, chunks, kvs)
	s.live.Forget(n)
	if err != nil {
		return 0, err
	}
	b := s.DB.Batch()
	b.SetMark(n, mark)
	return mark, b.Flush()
}

func (s *Store) forgetMark(n uint32) error {
	delete(s.marks, n)
	b := s.DB.Batch()
	b.DeleteMark(n)
	return errors.Join(b.Flush(), s.DB.Sync())
}

// MarkDead has plan choose what of pack n is to be given back, journals that as dead, and takes it out of the index. No
// chunk is looked up or written meanwhile, and none is on its way into a journal or into the index. It gives the length
// of the journal. With dry it only makes the plan.
func (s *Store) MarkDead(n uint32, dry bool, plan func() (kill []pack.Chunk, err error)) (journal int64, err error) {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	if !dry {
		if err := s.indexAll(); err != nil {
			return 0, err
		}
	}
	s.sweepMu.Lock()
	defer s.sweepMu.Unlock()
	kill, err := plan()
	if err != nil {
		return 0, err
	}
	if journal, err = s.Packs.JournalSize(n); err != nil || dry || len(kill) == 0 {
		return journal, err
	}
	if s.DB.Cut() { // what plan did not find may lie where the disk refuses to read
		return 0, s.DB.NoRoom("")
	}
	// Journalled as dead before the index forgets them, forgotten before the slots go: no crash leaves a location of a
	// slot that is gone.
	mark, err := s.Packs.Kill(n, kill)
	s.live.Forget(n)
	if err != nil {
		// The journal may call them dead at the next open, or not: nothing is to be built on them.
		s.avoid(kill)
		return 0, err
	}
	s.deadUnindexed = append(s.deadUnindexed, kill...)
	if err := s.indexCommitted(pack.Committed{Marks: map[uint32]int64{n: mark}}, nil); err != nil {
		s.avoid(kill)
		return 0, err
	}
	return mark, s.syncIndex()
}

// liveKeys calls fn for the key records of journal n that still count, for all those of the unclear owners, and for
// those that the index should have and lacks. Call with commitMu held.
func (s *Store) liveKeys(n uint32, unclear map[string]bool, fn func(pack.KV) error) error {
	_, _, err := s.Packs.Read(n, 0, func(r pack.Record) error {
		if r.KV == nil {
			return nil
		}
		seq, _, err := s.DB.Meta(r.KV.Key)
		if unclear[manifest.OwnerOf(r.KV.Key)] || errors.Is(err, keys.ErrMissing) && s.needs(r.KV.Key) {
			err = nil // what the index lacks of it may be here alone
		} else if errors.Is(err, keys.ErrMissing) || err == nil && seq > r.KV.Seq {
			return nil // an index that shows an older one has lost this one
		}
		// What the index holds damaged may be whole here.
		if err != nil && !errors.Is(err, keys.ErrDamaged) {
			return err
		}
		kv := *r.KV
		kv.Value = append([]byte(nil), kv.Value...)
		return fn(kv)
	})
	return err
}

// needs says whether a key that was journalled belongs into the index. That the index lacks it then says that it has
// lost something: the root of a removed checkpoint and the key of a forgotten distant pack stay as empty records,
// MovedKey stays, and the rest stays as long as the root. The root may be lost with it: the open store knows it then.
func (s *Store) needs(key string) bool {
	if manifest.IsRootKey(key) || distant.IsKey(key) || key == MovedKey {
		return true
	}
	if !strings.HasPrefix(key, manifest.TablePrefix) && !strings.HasPrefix(key, manifest.SegmentPrefix) {
		return false
	}
	_, root, err := s.DB.Meta(manifest.RootKey(manifest.OwnerOf(key)))
	return err == nil && len(root) > 0 || s.records.Stands(manifest.OwnerOf(key))
}

// moveBatch is how many bytes of keys go into one commit when a pack is dropped.
const moveBatch = 16 << 20

// DropPack removes pack n, which has no live chunks; its keys that still count are journalled in the newest pack first,
// and so are those of the unclear owners. No commit runs meanwhile: it could write a key anew that is just being moved.
func (s *Store) DropPack(n uint32, unclear map[string]bool) error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	if err := s.indexAll(); err != nil {
		return err
	}
	var kvs []pack.KV
	bytes := 0
	move := func() error {
		batch := kvs
		kvs, bytes = nil, 0
		if len(batch) == 0 {
			return nil
		}
		s.Hooks.Moving.Run()
		s.takeLosses()
		done, err := s.Packs.Commit(batch)
		if err != nil {
			s.commitFailed(batch, done.Lost, err)
			return err
		}
		return s.indexCommitted(done, nil) // it has these keys
	}
	err := s.liveKeys(n, unclear, func(kv pack.KV) error {
		kvs = append(kvs, kv)
		if bytes += len(kv.Value); bytes > moveBatch {
			return move()
		}
		return nil
	})
	if err == nil {
		err = move()
	}
	if err != nil {
		return err
	}
	// The mark goes first: the number may be used again.
	if err := s.forgetMark(n); err != nil {
		return err
	}
	defer s.live.Forget(n)
	return s.Packs.Drop(n)
}

// ShrinkJournal rewrites the journal of pack n if more than half of its records are obsolete, and gives how many bytes
// that saves. It reads the journal while commits wait, since one may have written to it in between.
func (s *Store) ShrinkJournal(n uint32, unclear map[string]bool) (gained int64, err error) {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	size, err := s.Packs.JournalSize(n)
	if err != nil || size < s.o.ShrinkJournal || n == s.Packs.Active() {
		return 0, err
	}
	if err := s.indexAll(); err != nil {
		return 0, err
	}
	dead, err := s.DeadSlots(n, 0)
	if err != nil {
		return 0, err
	}
	record := int64(1 + chunk.IDSize + pack.SizeOfLoc(s.Packs.Coder()))
	live := func(fn func(pack.Chunk)) ([]pack.Damage, error) {
		_, bad, err := s.Packs.Read(n, 0, func(r pack.Record) error {
			if c := r.Chunk; c != nil && !dead[c.Loc.Page] {
				fn(*c)
			}
			return nil
		})
		return bad, err
	}
	count := 0
	bad, err := live(func(pack.Chunk) { count++ })
	if err != nil || len(bad) > 0 {
		return 0, err // the next collection tells of damage
	}
	need := int64(count) * record
	err = s.liveKeys(n, unclear, func(kv pack.KV) error { need += int64(len(kv.Key) + len(kv.Value)); return nil })
	if err != nil || need > size/2 {
		return 0, err
	}
	chunks := make([]pack.Chunk, 0, count)
	if bad, err := live(func(c pack.Chunk) { chunks = append(chunks, c) }); err != nil || len(bad) > 0 {
		return 0, err
	}
	var kvs []pack.KV
	if err := s.liveKeys(n, unclear, func(kv pack.KV) error { kvs = append(kvs, kv); return nil }); err != nil {
		return 0, err
	}
	if s.Hooks.Rewriting != nil {
		s.Hooks.Rewriting(n)
	}
	now, err := s.rewriteJournal(n, chunks, kvs)
	if err != nil {
		return 0, err
	}
	return max(0, size-now), nil
}
