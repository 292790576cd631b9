package chunks

import (
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// This file is what follows from a sync that failed.
//
// What it was to cover is condemned: the kernel tells once that it could not write, and what it answers later
// proves nothing. Payload is not kept in memory until it is synced, that would be CommitEvery bytes, so chunks that
// a failed sync covered are lost, and forgotten: content that comes by again is stored anew, into another pack. A
// draft that refers to a lost chunk cannot be sealed, its dump fails with what the disk said, and the process that
// was dumped goes on.
//
// A commit that failed may have left its keys in a journal all the same, for a crash to bring them forth. Root records
// alone matter, for all others count with their root. So the next commit that succeeds says again what is true of every
// root that a failed one named; the end of a draft, and the store's close, see to it that there is one.

// commitFailed takes note of a commit that failed. Call with commitMu held.
func (s *Store) commitFailed(kvs []pack.KV, lost []pack.Chunk, why error) {
	for _, kv := range kvs {
		if manifest.IsRootKey(kv.Key) {
			s.unsettled[kv.Key] = true
		}
	}
	if len(lost) == 0 {
		return
	}
	s.ingest.forget(lost)
	s.log.Error("chunks are lost with a failed sync", "chunks", len(lost), "err", why)
	// After they are forgotten: who found one before began before.
	s.lossMu.Lock()
	defer s.lossMu.Unlock()
	s.losses++
	s.lossCause = why
}

// takeLosses takes note of chunks that were lost though no commit failed: a journal that could not be written to
// bury others, or to be written anew, has condemned their pack. Nothing that is committed after it waits for them.
// Call with commitMu held, and before it is looked at whether chunks have been lost.
func (s *Store) takeLosses() {
	if lost, why := s.Packs.TakeLost(); len(lost) > 0 {
		s.commitFailed(nil, lost, why)
	}
}

// Settle writes the present roots to a journal if failed commits named any: what such a commit has left in a journal
// cannot come back after a crash then.
func (s *Store) Settle() error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	if len(s.unsettled) == 0 {
		return nil
	}
	s.takeLosses()
	return s.commitLocked(nil)
}

// settle gives what is true of the roots that failed commits named, those of puts aside. Call with commitMu held.
func (s *Store) settle(puts []Put) (out []Put, err error) {
	if len(s.unsettled) == 0 {
		return nil, nil
	}
	named := map[string]bool{}
	for _, p := range puts {
		named[p.Key] = true
	}
	var roots []string
	for key := range s.unsettled {
		if !named[key] {
			roots = append(roots, key)
		}
	}
	payloads, err := s.records.RootRecords(roots)
	if err != nil {
		return nil, err
	}
	for i, key := range roots {
		out = append(out, Put{Key: key, Payload: payloads[i]})
	}
	return out, nil
}

// forget tells that nobody knows whether these chunks are on the disk.
func (in *ingest) forget(lost []pack.Chunk) {
	for _, c := range lost {
		in.mu.Lock()
		r := in.recent[c.ID]
		in.mu.Unlock()
		if r == nil {
			continue
		}
		<-r.done // it is in its pack already: its worker is about to say so
		in.mu.Lock()
		if in.recent[c.ID] == r && r.loc == c.Loc {
			delete(in.recent, c.ID)
		}
		in.mu.Unlock()
	}
}

// LossesNow gives how often chunks have been lost since the store was opened, and why the last time.
func (s *Store) LossesNow() (int, error) {
	s.lossMu.Lock()
	defer s.lossMu.Unlock()
	return s.losses, s.lossCause
}
