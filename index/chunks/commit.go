package chunks

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// Put is a metadata key to write.
type Put = keys.Put

// errSequence tells that a metadata record has a number that no store comes to by itself.
var errSequence = errors.New("the numbers of its metadata are used up")

// Commit makes all finished chunks durable and indexed, and the given keys with them, in this order.
func (s *Store) Commit(puts []Put) error {
	return s.CommitIf(puts, func() error { return nil })
}

// CommitIf is commit if ok gives nil while no other commit runs.
func (s *Store) CommitIf(puts []Put, ok func() error) error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	s.takeLosses()
	if err := ok(); err != nil {
		return err
	}
	return s.commitLocked(puts)
}

// commitLocked is commit for the one who holds commitMu. Sequence numbers are given here: the index applies records in
// the order in which they are committed, a rebuilt one in the order of their numbers.
func (s *Store) commitLocked(puts []Put) error {
	if s.over {
		return fault.Classify("commit", errClosed)
	}
	if s.o.ReadOnly {
		if len(puts) > 0 {
			return s.MayWrite("commit")
		}
		return nil
	}
	settled, err := s.settle(puts)
	if err != nil {
		return fault.Classify("commit", err)
	}
	told, ids := s.damage.takePuts()
	puts = slices.Concat(settled, told, puts)
	if s.seq.Load()+uint64(len(puts)) > pack.MaxSeq {
		s.damage.untell(ids)
		return &fault.Error{Class: fault.Corrupt, Op: "commit", Err: errSequence,
			Hint: "somebody has forged a journal of this store: export what it holds into a new one"}
	}
	kvs := make([]pack.KV, len(puts))
	for i, p := range puts {
		kvs[i] = pack.KV{Seq: s.seq.Add(1), Key: p.Key, Value: p.Payload, Delete: p.Payload == nil}
	}
	done, err := s.Packs.Commit(kvs)
	if err != nil {
		s.damage.untell(ids)
		s.commitFailed(kvs, done.Lost, err)
		return fault.Classify("commit", err)
	}
	if err := s.indexCommitted(done, kvs); err != nil {
		return err
	}
	clear(s.unsettled)
	return nil
}

// CommitKVs is commit for keys that have their sequence number. They must be later than what the index has.
func (s *Store) CommitKVs(kvs []pack.KV) error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	s.takeLosses()
	done, err := s.Packs.Commit(kvs)
	if err != nil {
		s.commitFailed(kvs, done.Lost, err)
		return fault.Classify("commit", err)
	}
	return s.indexCommitted(done, kvs)
}

// indexCommitted gives the index what a commit has journalled, and what an earlier failure left out. Call with
// commitMu held.
func (s *Store) indexCommitted(done pack.Committed, kvs []pack.KV) error {
	// What a failed batch left out goes first: its journals are about to be marked as applied.
	chunks := append(s.unindexed, done.Chunks...)
	kvs = append(s.unapplied, kvs...)
	b := s.DB.Batch()
	var gone []pack.Chunk
	var err error
	for _, c := range s.deadUnindexed {
		loc, lerr := s.DB.Loc(c.ID)
		if errors.Is(lerr, keys.ErrMissing) || lerr == nil && loc == c.Loc {
			b.DeleteChunk(c.ID) // also where none is shown: it could be shown again later
			gone = append(gone, c)
		} else if keys.Failed(lerr) {
			err = lerr // it could lead to a slot that has been given back
		}
	}
	for _, c := range chunks {
		b.SetChunk(c)
	}
	s.Distant.Index(b, kvs)
	s.applyKVs(b, kvs)
	for n, end := range done.Marks {
		b.SetDurable(n, end)
	}
	if ferr := b.Flush(); ferr != nil {
		err = ferr
	}
	if err == nil {
		maps.Copy(s.marks, done.Marks)
		s.unsynced += len(chunks) + len(kvs) + len(gone)
	}
	if err == nil && (len(kvs) > 0 || s.unsynced > maxUnsynced || s.unmarked(done.Marks)) {
		err = s.syncIndex()
	}
	if err != nil {
		s.unindexed, s.unapplied = chunks, kvs
		s.behind.Store(true)
		s.commitFailed(kvs, nil, err)
		return fault.Classify("commit", fmt.Errorf("index: %w", err))
	}
	s.unindexed, s.unapplied, s.deadUnindexed = nil, nil, nil
	s.behind.Store(false)
	s.forgetDamage(gone)
	s.ingest.indexed(chunks)
	return nil
}

// unmarked says whether one of these packs has no mark in the index yet. A pack without one could not be told from a
// pack whose journal was put in place of another's: see package repair.
func (s *Store) unmarked(marks map[uint32]int64) bool {
	for n := range marks {
		if mark, err := s.DB.Mark(n); err == nil && mark == 0 {
			return true
		}
	}
	return false
}

// maxUnsynced is about how many records the index is given before it is synced. So many are read from journals again
// when the process is killed.
const maxUnsynced = 1 << 16

// syncIndex makes durable what the index was given, and only then notes how far it has the journals. A note that came
// with what it tells of could outlive it: Badger writes a full table of its memory to the disk at any time, and the
// values that the table refers to, or what the table before it held, later. A note that a power cut takes costs no more
// than a second look at the journal. Call with commitMu held.
func (s *Store) syncIndex() error {
	if len(s.marks) == 0 && s.unsynced == 0 {
		return nil
	}
	if err := s.DB.Sync(); err != nil {
		return err
	}
	s.unsynced = 0
	b := s.DB.Batch()
	for n, end := range s.marks {
		b.SetMark(n, end)
	}
	if err := b.Flush(); err != nil {
		return err
	}
	clear(s.marks)
	return nil
}

// indexAll sees to it that the index knows all that the journals tell. Call with commitMu held.
func (s *Store) indexAll() error {
	if len(s.unindexed)+len(s.unapplied)+len(s.deadUnindexed) == 0 {
		return nil
	}
	return s.indexCommitted(pack.Committed{}, nil)
}

func (s *Store) applyKVs(b *keys.Batch, kvs []pack.KV) {
	s.latest.Give(b, kvs)
	for _, kv := range kvs {
		b.Later(kv.Seq)
		if kv.Delete && !manifest.IsRootKey(kv.Key) {
			b.DeleteMeta(kv.Key)
			continue
		}
		// A deleted root stays as an empty record: it keeps an older journal from bringing the checkpoint back.
		b.SetMeta(kv.Key, kv.Seq, kv.Value)
	}
}

// PutLocal writes keys to Badger alone: what belongs to a draft need not outlive the index. What a commit has
// journalled of the same keys before, and Badger has not taken yet, goes first: it would take the place of these later.
func (s *Store) PutLocal(puts []Put) error {
	if s.behind.Load() {
		s.commitMu.Lock()
		err := s.indexAll()
		s.commitMu.Unlock()
		if err != nil {
			return err
		}
	}
	b := s.DB.Batch()
	for _, p := range puts {
		var seq uint64
		if manifest.IsRootKey(p.Key) {
			// What a journal told of it last stays in force: an older journal is not to bring the checkpoint back.
			was, _, err := s.DB.Meta(p.Key)
			if keys.Failed(err) {
				return fault.Classify("write index", err)
			}
			seq = was
		}
		switch {
		case p.Payload == nil && seq > 0:
			b.SetMeta(p.Key, seq, nil)
		case p.Payload == nil:
			b.DeleteMeta(p.Key)
		default:
			b.SetMeta(p.Key, seq, p.Payload)
		}
	}
	return fault.Classify("write index", b.Flush())
}

// SumOf gives what [Store.Local] is to be asked with for a payload.
func SumOf(payload []byte) uint32 { return crc32c.Checksum(payload) }

// Local gives the payload that PutLocal wrote at a key, by its sum: nothing else tells it from an earlier one, which
// the index shows where it has lost this. That is ErrDamaged.
func (s *Store) Local(key string, sum uint32) ([]byte, error) {
	_, payload, err := s.DB.Meta(key)
	if err == nil && SumOf(payload) != sum {
		err = fmt.Errorf("%w: it is not what was written last: %s", keys.ErrDamaged, key)
	}
	return payload, err
}
