package index

import (
	"errors"
	"fmt"

	"github.com/gpucr/gpucr-fs/index/pack"
)

// put is a metadata key to write; a nil payload deletes it.
type put struct {
	key     string
	payload []byte
}

// commit makes all finished chunks durable and indexed, and the given keys with them, in this order.
func (s *Store) commit(puts []put) error {
	kvs := make([]pack.KV, len(puts))
	for i, p := range puts {
		kvs[i] = pack.KV{Seq: s.seq.Add(1), Key: p.key, Value: p.payload, Delete: p.payload == nil}
	}
	return s.commitKVs(kvs)
}

// commitKVs is commit for keys that have their sequence number.
func (s *Store) commitKVs(kvs []pack.KV) error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	done, err := s.packs.Commit(kvs)
	if err != nil {
		return classify("commit", err)
	}
	// What a failed batch left out goes first: its journals are about to be marked as applied.
	chunks := append(s.unindexed, done.Chunks...)
	kvs = append(s.unapplied, kvs...)
	b := s.db.batch()
	for _, c := range chunks {
		b.setLoc(c)
	}
	applyKVs(b, kvs)
	for n, end := range done.Marks {
		b.setMark(n, end)
	}
	err = b.flush()
	if err == nil && len(kvs) > 0 {
		err = s.db.sync()
	}
	if err != nil {
		s.unindexed, s.unapplied = chunks, kvs
		return classify("commit", fmt.Errorf("index: %w", err))
	}
	s.unindexed, s.unapplied = nil, nil
	s.ingest.indexed(chunks)
	return nil
}

func applyKVs(b *batch, kvs []pack.KV) {
	for _, kv := range kvs {
		if kv.Delete && !isRootKey(kv.Key) {
			b.delete(metaKey(kv.Key))
			continue
		}
		// A deleted root stays as an empty record: it keeps an older journal from bringing the checkpoint back.
		b.setMeta(kv.Key, kv.Seq, kv.Value)
	}
}

// putLocal writes keys to Badger alone: what belongs to a draft need not outlive the index.
func (s *Store) putLocal(puts []put) error {
	b := s.db.batch()
	for _, p := range puts {
		if p.payload == nil {
			b.delete(metaKey(p.key))
		} else {
			b.setMeta(p.key, 0, p.payload)
		}
	}
	return classify("write index", b.flush())
}

// recover applies to Badger what the journals hold beyond their applied marks, cuts off what a crash left half written, and reads the root records.
func (s *Store) recover() error {
	packs, err := s.packs.Packs()
	if err != nil {
		return classify("open store", err)
	}
	var last uint32
	var lastPayload, lastJournal int64
	for _, n := range packs {
		mark, err := s.db.mark(n)
		if err != nil {
			return s.openError(pack.JournalName(n), err)
		}
		end, err := s.replay(n, mark)
		if err != nil {
			return s.openError(pack.JournalName(n), err)
		}
		last, lastJournal = n, end
	}
	if last != 0 {
		lastPayload, err = s.payloadEnd(last)
		if err != nil {
			return s.openError(pack.JournalName(last), err)
		}
		if lastPayload < s.config.PackSize {
			if err := s.packs.Resume(last, lastPayload, lastJournal); errors.Is(err, pack.ErrCorrupt) {
				s.log.Error("a pack cannot be appended to, a new one will be begun", "pack", pack.Name(last), "err", err)
			} else if err != nil {
				return s.openError(pack.Name(last), err)
			}
		}
	}
	return s.loadRoots()
}

func (s *Store) openError(file string, err error) error {
	e := classify("open store", err).(*Error)
	if e.File == "" {
		e.File = file
	}
	if e.Class == Other {
		e.Class = Corrupt
	}
	if e.Hint == "" {
		e.Hint = damagedHint(s.dir)
	}
	return e
}

// replay applies the journal of pack n from mark on and returns the end of its valid part.
func (s *Store) replay(n uint32, mark int64) (end int64, err error) {
	size, err := s.packs.JournalSize(n)
	if err != nil {
		return 0, err
	}
	if mark > size {
		mark = 0 // the journal was rewritten, and the crash came before that was noted
	}
	if mark == size {
		return size, nil
	}
	dead, err := s.deadSlots(n, mark)
	if err != nil {
		return 0, err
	}
	b := s.db.batch()
	applied := 0
	end, bad, err := s.packs.Read(n, mark, func(r pack.Record) error {
		if c := r.Chunk; c != nil && dead[c.Loc.Page] {
			return nil
		}
		applied++
		return s.apply(b, r)
	})
	if err != nil {
		return 0, errors.Join(err, b.flush())
	}
	if len(bad) > 0 {
		last := bad[len(bad)-1]
		if len(bad) > 1 || last.Off+last.Len < size {
			return 0, errors.Join(fmt.Errorf("%w: journal %s at %d: %s", pack.ErrCorrupt, pack.JournalName(n), bad[0].Off, bad[0].Text), b.flush())
		}
		s.log.Info("cutting off what a crash left half written", "journal", pack.JournalName(n), "at", end, "bytes", size-end)
		if err := s.packs.TruncateJournal(n, end); err != nil {
			return 0, errors.Join(err, b.flush())
		}
	}
	b.setMark(n, end)
	if err := b.flush(); err != nil {
		return 0, err
	}
	if applied > 0 {
		s.log.Info("applied a journal to the index", "journal", pack.JournalName(n), "records", applied)
	}
	return end, nil
}

// deadSlots gives the slots, by page, that the journal of pack n calls dead from mark on.
func (s *Store) deadSlots(n uint32, mark int64) (map[uint32]bool, error) {
	dead := map[uint32]bool{}
	_, _, err := s.packs.Read(n, mark, func(r pack.Record) error {
		if r.Dead != nil {
			dead[r.Dead.Loc.Page] = true
		}
		return nil
	})
	return dead, err
}

// apply adds one journal record to b, unless the index holds a later one.
func (s *Store) apply(b *batch, r pack.Record) error {
	switch {
	case r.Chunk != nil:
		b.setLoc(*r.Chunk)
	case r.Dead != nil:
		loc, err := s.db.loc(r.Dead.ID)
		if err == nil && loc.Pack == r.Dead.Loc.Pack && loc.Page == r.Dead.Loc.Page {
			b.delete(chunkKey(r.Dead.ID))
		}
	case r.KV != nil:
		if seq, _, err := s.db.meta(r.KV.Key); err == nil && seq >= r.KV.Seq {
			return nil
		}
		kv := *r.KV
		kv.Value = append([]byte(nil), kv.Value...)
		applyKVs(b, []pack.KV{kv})
	}
	return nil
}

// payloadEnd gives the end of the last slot of pack n.
func (s *Store) payloadEnd(n uint32) (int64, error) {
	var end int64
	_, _, err := s.packs.Read(n, 0, func(r pack.Record) error {
		if c := r.Chunk; c != nil {
			end = max(end, c.Loc.Offset()+c.Loc.Slot())
		}
		return nil
	})
	return end, err
}
