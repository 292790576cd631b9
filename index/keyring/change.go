package keyring

import (
	"errors"
	"fmt"
	"slices"
)

// Change is what became of a ring. It can be made in another ring of the same master key, as that of a remote store.
type Change struct {
	Added    []Key
	Removed  []string // ids of keys
	Replaced bool     // no key of before is left: another ring loses all of its keys, too
}

// Clone gives a ring that can be changed without the other.
func (r *Ring) Clone() *Ring {
	return &Ring{Format: r.Format, Check: r.Check, Keys: slices.Clone(r.Keys)}
}

// Since gives what became of a ring since it was as before.
func (r *Ring) Since(before *Ring) Change {
	var c Change
	for _, k := range r.Keys {
		if !before.has(k.ID) {
			c.Added = append(c.Added, k)
		}
	}
	for _, k := range before.Keys {
		if !r.has(k.ID) {
			c.Removed = append(c.Removed, k.ID)
		}
	}
	c.Replaced = len(c.Removed) == len(before.Keys)
	return c
}

func (r *Ring) has(id string) bool {
	return slices.ContainsFunc(r.Keys, func(k Key) bool { return k.ID == id })
}

// In makes the change in a ring, and says whether that was not as it says before. It refuses to leave a ring without
// keys, or with too many.
func (c Change) In(r *Ring) (changed bool, err error) {
	after := r.Clone()
	after.Keys = slices.DeleteFunc(after.Keys, func(k Key) bool {
		fresh := slices.ContainsFunc(c.Added, func(a Key) bool { return a.ID == k.ID })
		return !fresh && (c.Replaced || slices.Contains(c.Removed, k.ID))
	})
	lost := len(after.Keys) < len(r.Keys)
	for _, k := range c.Added {
		if !after.has(k.ID) {
			after.Keys = append(after.Keys, k)
			changed = true
		}
	}
	switch {
	case len(after.Keys) == 0:
		return false, errors.New("no key would be left: nobody could open it")
	case len(after.Keys) > maxKeys:
		return false, fmt.Errorf("it would have %d keys, at most %d are allowed", len(after.Keys), maxKeys)
	}
	*r = *after
	return changed || lost, nil
}
