package roots

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
)

// Latest gives the checkpoint sealed last. Class NotFound in a store without any.
func (s *Set) Latest() (*Root, *manifestpb.Checkpoint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var last *Root
	for _, r := range s.names {
		if r.complete() && !r.removing && (last == nil || r.pb.SealedNs > last.pb.SealedNs) {
			last = r
		}
	}
	if last == nil {
		return nil, nil, &fault.Error{Class: fault.NotFound, Op: "open checkpoint",
			Err:  errors.New("the store has no sealed checkpoint"),
			Hint: "make one with: gpucr-fs import, or criu dump into the mount"}
	}
	return last, last.pb, nil
}

// Sealed gives a sealed checkpoint, and its record as it is now, by name, tag, or unique prefix (at least 4 digits) of
// its id, in this order. Class NotFound.
func (s *Set) Sealed(op, ref string) (*Root, *manifestpb.Checkpoint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.sealed(op, ref)
	if err != nil {
		return nil, nil, err
	}
	return r, r.pb, nil
}

// AllSealed is sealedRoot for several, as of one moment.
func (s *Set) AllSealed(op string, refs []string) (roots []*Root, pbs []*manifestpb.Checkpoint, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ref := range refs {
		r, err := s.sealed(op, ref)
		if err != nil {
			return nil, nil, err
		}
		roots, pbs = append(roots, r), append(pbs, r.pb)
	}
	return roots, pbs, nil
}

// ByID gives the checkpoint with an id, and its record as it is now; nil when there is none.
func (s *Set) ByID(id string) (*Root, *manifestpb.Checkpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.roots[id]; r != nil {
		return r, r.pb
	}
	return nil, nil
}

// Parent gives the checkpoint that r is built on, and its record as it is now; nil when there is none.
func (s *Set) Parent(r *Root) (*Root, *manifestpb.Checkpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.roots[r.pb.ParentId]; p != nil && p.complete() {
		return p, p.pb
	}
	return nil, nil
}

// Info describes a checkpoint.
func (s *Set) Info(r *Root) Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info(r)
}

// OpenFile counts an open file of a checkpoint; false when the checkpoint is gone.
func (s *Set) OpenFile(r *Root) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.removed && s.roots[r.ID] != r {
		return false
	}
	r.opens++
	return true
}

// DamagedIDs gives the ids whose root record could not be read when the store was opened.
func (s *Set) DamagedIDs() []string { return slices.Collect(maps.Keys(s.damagedRoots)) }

// Snapshot gives the root records of all complete checkpoints, those included whose removal waits for open files.
func (s *Set) Snapshot() (roots []*Root, pbs []*manifestpb.Checkpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.roots {
		if r.pb.Sealed && !r.writing {
			roots, pbs = append(roots, r), append(pbs, r.pb)
		}
	}
	return roots, pbs
}

// Unlike is ErrDamaged where the index has a sealed checkpoint that the open store does not know as one, or lacks one
// that it knows: the index could not be read in part when the store was opened, or has lost something since.
func (s *Set) Unlike() error {
	s.updateMu.Lock() // else a record would be committed that is not known yet
	defer s.updateMu.Unlock()
	known := map[string]bool{}
	s.mu.Lock()
	for id, r := range s.roots {
		if r.complete() && !r.removed {
			known[id] = true
		}
	}
	s.mu.Unlock()
	err := s.chunks.DB.Metas(manifest.RootPrefix, func(key string, _ uint64, payload []byte, err error) error {
		if err == nil && len(payload) == 0 {
			return nil // removed
		}
		id := manifest.OwnerOf(key)
		pb, derr := manifest.DecodeCheckpoint(payload)
		switch {
		case err != nil || derr != nil: // damage is told of elsewhere
		case !pb.Sealed:
			return nil
		case !known[id] && pb.Id == id:
			return fmt.Errorf("%w: it did not show checkpoint %s when the store was opened", keys.ErrDamaged, pb.Name)
		}
		delete(known, id)
		return nil
	})
	for id := range known {
		if err == nil {
			err = fmt.Errorf("%w: it has lost %d checkpoints, %s for one", keys.ErrDamaged, len(known), id)
		}
	}
	return err
}

// Stands says whether a checkpoint is sealed or being written.
func (s *Set) Stands(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.roots[id]
	return r != nil && !r.removed
}

// IsGone says whether a checkpoint has been removed, and no file of it is open: its manifest goes then.
func (s *Set) IsGone(r *Root) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roots[r.ID] != r
}

// CloseFile tells that a checkpoint has an open file less.
func (s *Set) CloseFile(r *Root) error {
	s.mu.Lock()
	r.opens--
	s.mu.Unlock()
	return s.forgetIfUnused(r)
}
