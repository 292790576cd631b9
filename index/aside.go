package index

import "github.com/gpucr/gpucr-fs/index/aside"

// SetAside is something in the folder of the packs that cannot be accounted for; see [aside.Entry].
type SetAside = aside.Entry

// SetAside lists what the store keeps without being able to account for it. Damage of older journals is found by
// Verify and GC, and listed once they have been there.
func (s *Store) SetAside() ([]SetAside, error) { return s.chunks.Aside.All() }
