// Package profiles reads what a store keeps of the order in which a restored process touches its memory.
//
// What is kept is a profile of package prefetch, or one with a mark before it: that one is not replayed, and the next
// restore records another. There are no locks.
package profiles

import (
	"bytes"
	"log/slog"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/prefetch"
)

// anew stands before a profile that serves as a record only: the next restore makes a new one.
var anew = []byte("ANEW")

// decode reads a stored profile; again tells that a new one is to be recorded. p may be nil then.
func decode(b []byte) (p *prefetch.Profile, again bool, err error) {
	b, again = bytes.CutPrefix(b, anew)
	if again && len(b) == 0 {
		return nil, true, nil
	}
	p, err = prefetch.DecodeProfile(b)
	return p, again, err
}

// Anew gives what is stored so that the next restore records a new profile; p, the present one, may be nil.
func Anew(p *prefetch.Profile) []byte {
	b := append([]byte{}, anew...)
	if p != nil {
		b = append(b, p.Encode()...)
	}
	return b
}

// Stored gives the profile of a checkpoint. Class NotFound without one, Corrupt for a damaged one.
func Stored(s *index.Store, ref string) (name string, p *prefetch.Profile, again bool, err error) {
	c, err := s.Checkpoint(ref)
	if err != nil {
		return "", nil, false, err
	}
	name = c.Info().Name
	b, err := s.Profile(c.Info().ID)
	if err != nil {
		return name, nil, false, err
	}
	if p, again, err = decode(b); err != nil {
		return name, nil, false, &index.Error{
			Class:      index.Corrupt,
			Op:         "read profile",
			Checkpoint: name,
			Err:        err,
			Hint:       "clear it: the next restore records a new one",
		}
	}
	return name, p, again, nil
}

// Load gives the profile for a restore of a checkpoint, nil without one, and whether the restore is to record one. A
// damaged profile counts as none.
func Load(s *index.Store, ref string, log *slog.Logger) (p *prefetch.Profile, record bool, err error) {
	b, err := s.Profile(ref)
	if index.ClassOf(err) == index.NotFound || index.ClassOf(err) == index.Corrupt {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	p, again, err := decode(b)
	if err != nil {
		log.Warn("the profile cannot be read, recording a new one", "checkpoint", ref, "error", err)
		return nil, true, nil
	}
	if again {
		return nil, true, nil
	}
	return p, false, nil
}
