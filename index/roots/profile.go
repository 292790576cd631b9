package roots

import (
	"errors"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// Profile gives the profile stored with a sealed checkpoint: bytes that mean something to those who stored them.
// Class NotFound when there is none.
func (s *Set) Profile(ref string) ([]byte, error) {
	const op = "read profile"
	s.mu.Lock()
	r, err := s.sealed(op, ref)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	_, payload, err := s.chunks.DB.Meta(manifest.ProfileKey(r.ID))
	if errors.Is(err, keys.ErrMissing) || err == nil && len(payload) == 0 {
		return nil, &fault.Error{Class: fault.NotFound, Op: op, Checkpoint: r.Name(), Err: errors.New("no profile"),
			Hint: "a first restore records one"}
	}
	if err != nil {
		return nil, &fault.Error{Class: fault.Corrupt, Op: op, Checkpoint: r.Name(), Err: err,
			Hint: "clear it: the next restore records a new one"}
	}
	return payload, nil
}

// SetProfile stores a profile with a sealed checkpoint; nil clears it. The hot set of an earlier one goes.
func (s *Set) SetProfile(ref string, profile []byte) error {
	if err := s.chunks.MayWrite("write profile"); err != nil {
		return err
	}
	const op = "write profile"
	s.updateMu.Lock() // it is not to be removed meanwhile
	defer s.updateMu.Unlock()
	s.mu.Lock()
	r, err := s.sealed(op, ref)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if len(profile) > pack.MaxValue {
		return &fault.Error{Class: fault.Invalid, Op: op, Checkpoint: r.Name(), Err: pack.ErrTooLarge}
	}
	if err := s.dropHotSet(r.ID); err != nil {
		return fault.Classify(op, err)
	}
	// Cleared, it stays as an empty record, which keeps an older journal from bringing it back.
	puts := []chunks.Put{{Key: manifest.ProfileKey(r.ID), Payload: append([]byte{}, profile...)}}
	if _, _, err := s.chunks.DB.Meta(manifest.HotKey(r.ID)); !errors.Is(err, keys.ErrMissing) {
		puts = append(puts, chunks.Put{Key: manifest.HotKey(r.ID), Payload: []byte{}}) // of the earlier profile
	}
	return s.chunks.Commit(puts)
}

// SetHotPieces stores the record of a sealed checkpoint's hot set that lies in a bucket; see [manifest.EncodeHot].
func (s *Set) SetHotPieces(ref string, record []byte) error {
	const op = "write hot set"
	if err := s.chunks.MayWrite(op); err != nil {
		return err
	}
	s.updateMu.Lock() // it is not to be removed meanwhile
	defer s.updateMu.Unlock()
	s.mu.Lock()
	r, err := s.sealed(op, ref)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.chunks.Commit([]chunks.Put{{Key: manifest.HotKey(r.ID), Payload: record}})
}
