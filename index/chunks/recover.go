package chunks

import (
	"errors"
	"path/filepath"
	"slices"

	"github.com/gpucr/gpucr-fs/index/aside"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/latest"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// Recover applies to Badger what the journals hold beyond their applied marks, and reads what is known of damage.
// It changes nothing in the folder of the packs.
//
// A journal ends in half a frame when its writer was killed. The half frame begins at the mark or behind it, since the
// mark is set before a commit is reported as done, so no promise is broken. Any other bytes that are no valid frame are
// damage, and so is a journal that is shorter than its mark. Damage is reported, the pack takes no more appends, and gc
// leaves the pack alone. What Badger knows of the pack can still be read.
func (s *Store) Recover() error {
	packs, err := s.Packs.Packs()
	if err != nil {
		return fault.Classify("open store", err)
	}
	err = s.DB.Marks(func(n uint32) {
		s.Packs.NeverUse(n)
		if !slices.Contains(packs, n) {
			s.Aside.Keep(n, aside.Entry{File: filepath.Join(PacksFolder, pack.JournalName(n)),
				Text: "damaged: the journal is gone"})
		}
	})
	if err != nil {
		return s.openError(IndexFolder, err)
	}
	if !s.o.ReadOnly {
		if err := s.found(packs); err != nil {
			return s.openError(IndexFolder, err)
		}
	}
	whole := s.o.ReadOnly
	if !whole {
		if whole, err = s.latest.Load(s.DB); err != nil {
			return s.openError(IndexFolder, err)
		}
	}
	for _, n := range packs {
		if err := s.replay(n); err != nil {
			return s.openError(pack.JournalName(n), err)
		}
	}
	s.commitMu.Lock()
	err = s.syncIndex()
	s.commitMu.Unlock()
	if err != nil {
		return s.openError(IndexFolder, err)
	}
	if !s.o.ReadOnly {
		if err := s.countOn(); err != nil {
			return s.openError(IndexFolder, err)
		}
	}
	if !whole {
		if err := s.compareRoots(); err != nil {
			return s.openError(IndexFolder, err)
		}
	}
	if len(packs) > 0 && !s.o.ReadOnly {
		n := packs[len(packs)-1]
		if err := s.resume(n); err != nil {
			return s.openError(pack.Name(n), err)
		}
	}
	list, err := s.Aside.All()
	if err != nil {
		return fault.Classify("open store", err)
	}
	for _, a := range list {
		s.log.Error("set aside", "file", a.File, "offset", a.Offset, "why", a.Text)
	}
	return errors.Join(s.loadDamage(), s.Distant.Load())
}

// found sees to it that the index notes the highest sequence, before a journal's tail is noted for it: an index that
// lacks the note, or holds it damaged, is gone through, with all journals.
func (s *Store) found(packs []uint32) error {
	_, err := s.DB.Seq()
	if !errors.Is(err, keys.ErrMissing) && !errors.Is(err, keys.ErrDamaged) {
		return err
	}
	seq, err := s.highest(packs)
	if err != nil {
		return err
	}
	b := s.DB.Batch()
	b.Later(seq)
	return b.Flush()
}

// compareRoots looks whether the journals tell of later root records than the index shows. If so nothing of the store
// is to be changed: what is written of a checkpoint would count for more than what is true of it.
func (s *Store) compareRoots() error {
	told, bad, err := s.Journalled(manifest.IsRootKey)
	if err != nil {
		s.log.Warn("the index could not be compared with the journals", "pack", pack.Name(bad), "err", err)
		return nil
	}
	if s.older = latest.Behind(s.DB, told); errors.Is(s.older, keys.ErrDamaged) {
		s.log.Error("nothing of the store is changed until repair has put the index right", "err", s.older)
		return nil
	} else if s.older != nil {
		return s.older
	}
	b := s.DB.Batch()
	s.latest.Note(b)
	if err := b.Flush(); err != nil { // as on a full disk; it is compared again
		s.log.Warn("the sum over the root records could not be noted", "err", err)
	}
	return nil
}

// Journalled is latest.Journalled of the journals that can be accounted for.
func (s *Store) Journalled(counts func(key string) bool) (told map[string]pack.KV, bad uint32, err error) {
	return latest.Journalled(s.Packs, func(n uint32) bool { return s.Aside.Has(n) || s.Packs.Condemned(n) }, counts)
}

// countOn sees to it that the next metadata record gets a higher sequence than any before. One that the index has
// forgotten may still be in a journal, and would count in an index that is built anew.
func (s *Store) countOn() error {
	seq, err := s.DB.Seq()
	s.seq.Store(max(s.seq.Load(), seq))
	return err
}

// CountBeyond sees to it that the next metadata record gets a higher sequence than this one, which is in the index. An
// index that has lost the last note of the highest may show an earlier one.
func (s *Store) CountBeyond(seq uint64) { s.seq.Store(max(s.seq.Load(), seq)) }

// highest looks for the highest sequence in the index and in all journals.
func (s *Store) highest(packs []uint32) (seq uint64, err error) {
	err = s.DB.Metas("", func(_ string, n uint64, _ []byte, _ error) error {
		seq = max(seq, n)
		return nil
	})
	for _, n := range packs {
		if err != nil {
			break
		}
		_, _, err = s.Packs.Read(n, 0, func(r pack.Record) error {
			if r.KV != nil {
				seq = max(seq, r.KV.Seq)
			}
			return nil
		})
	}
	return seq, err
}

// resume lets the newest pack take appends again, if it is whole, and nothing lies behind or between what its journal
// tells: gc gives that back only of packs that take no appends.
func (s *Store) resume(n uint32) error {
	if why, err := s.Packs.Missing(n); err != nil || why != "" || s.Aside.Has(n) {
		return err
	}
	durable, err := s.DB.Durable(n)
	if err != nil {
		return err
	}
	var payload, told int64
	end, bad, err := s.Packs.Read(n, 0, func(r pack.Record) error {
		if r.KV != nil {
			s.CountBeyond(r.KV.Seq) // the index may show an earlier note of the highest
		}
		if c := r.Chunk; c != nil {
			payload = max(payload, c.Loc.Offset()+c.Loc.Slot())
			told += c.Loc.Slot()
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.Aside.Judge(n, durable, end, bad)
	if s.Aside.Has(n) || len(bad) > 0 || payload >= s.o.PackSize || told < payload {
		return nil
	}
	resumed, err := s.Packs.Resume(n, payload, end)
	if err == nil && !resumed {
		s.log.Info("the newest pack has got all that it will: behind what was committed lies what was not",
			"pack", pack.Name(n))
	}
	return err
}

func (s *Store) openError(file string, err error) error {
	return fault.Unreadable("open store", s.o.Dir, file, err)
}

// replay applies the journal of pack n from its mark on.
func (s *Store) replay(n uint32) error {
	mark, err := s.DB.Mark(n)
	if err != nil {
		return err
	}
	durable, err := s.DB.Durable(n)
	if err != nil {
		return err
	}
	size, err := s.Packs.JournalSize(n)
	if err != nil {
		return err
	}
	if durable > size {
		s.Aside.Judge(n, durable, size, nil)
	}
	if mark >= size {
		return nil
	}
	dead := map[uint32]bool{}
	var deadSlots []pack.Chunk
	last, bad, err := s.Packs.Read(n, mark, func(r pack.Record) error {
		if r.Dead != nil {
			dead[r.Dead.Loc.Page] = true
			deadSlots = append(deadSlots, *r.Dead)
		}
		if r.KV != nil {
			s.seq.Store(max(s.seq.Load(), r.KV.Seq))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(bad) > 0 && bad[0].Off == mark {
		// Another journal may have been put in the place of the one that was read before: it may tell of slots that
		// have been given back since.
		if s.Aside.Judge(n, mark, size, nil); s.Aside.Has(n) {
			return nil
		}
	}
	// First of all: what the index has been told must not be lost with a sync that fails, for new checkpoints refer to
	// it.
	if err := s.Packs.SyncJournal(n, mark, last); err != nil {
		return err
	}
	b := s.DB.Batch()
	applied := len(deadSlots)
	// first: one that was moved within its pack has its new place before the end of the old one
	for i := range deadSlots {
		if err := s.Apply(b, pack.Record{Dead: &deadSlots[i]}); err != nil {
			return errors.Join(err, b.Flush())
		}
	}
	end, bad, err := s.Packs.Read(n, mark, func(r pack.Record) error {
		if c := r.Chunk; r.Dead != nil || c != nil && (dead[c.Loc.Page] || s.KnowsLater(*c)) {
			return nil
		}
		applied++
		return s.Apply(b, r)
	})
	if err != nil {
		return errors.Join(err, b.Flush())
	}
	switch {
	case len(bad) == 1 && bad[0].Off == end && end >= durable:
		s.log.Info("a crash left a commit half written", "journal", pack.JournalName(n), "at", end, "bytes", size-end)
		s.Packs.EndAt(n, end)
	case len(bad) > 0:
		s.Aside.Judge(n, mark, size, bad)
		end = bad[0].Off
	}
	if s.DB.ReadOnly() && applied == 0 {
		return nil
	}
	if err := b.Flush(); err != nil {
		return err
	}
	s.marks[n] = end
	if applied > 0 {
		s.log.Info("applied a journal to the index", "journal", pack.JournalName(n), "records", applied)
	}
	return nil
}

// KnowsLater says whether the index has c at a later place: it was stored anew since.
func (s *Store) KnowsLater(c pack.Chunk) bool {
	loc, err := s.DB.Loc(c.ID)
	return err == nil && isLater(loc, c.Loc)
}

// isLater says whether a was written after b.
func isLater(a, b pack.Loc) bool { return a.Pack > b.Pack || a.Pack == b.Pack && a.Page > b.Page }

// Apply adds one journal record to b, unless the index or b holds a later one. One that the index holds already is
// added again: after a power cut its value may lie in a log behind a hole, and Badger takes that for the end of the
// log.
func (s *Store) Apply(b *keys.Batch, r pack.Record) error {
	switch {
	case r.Chunk != nil:
		b.SetChunk(*r.Chunk)
	case r.Dead != nil:
		loc, err := s.DB.Loc(r.Dead.ID)
		if keys.Failed(err) {
			return err // it could lead to a slot that has been given back
		}
		if err == nil && loc.Pack == r.Dead.Loc.Pack && loc.Page == r.Dead.Loc.Page {
			b.DeleteChunk(r.Dead.ID)
		}
	case r.KV != nil:
		b.Later(r.KV.Seq) // also where it is not applied
		if seq, _, err := s.DB.Meta(r.KV.Key); err == nil && seq > r.KV.Seq || !b.Newest(r.KV.Key, r.KV.Seq) {
			return nil
		}
		kv := *r.KV
		kv.Value = append([]byte(nil), kv.Value...)
		s.Distant.Index(b, []pack.KV{kv})
		s.applyKVs(b, []pack.KV{kv})
	}
	return nil
}
