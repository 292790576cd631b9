package roots

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
)

// Keep has a checkpoint stay until release is called, which may be called again: Remove refuses it. A restore keeps the
// checkpoint whose memory it brings: were it gone when the daemon dies, no other daemon could bring the rest. Class
// NotFound when it has been removed, or is being removed.
func (s *Set) Keep(r *Root) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.removing || r.removed || s.roots[r.ID] != r {
		return nil, NotFound("restore", r.Name())
	}
	r.keeps++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		r.keeps--
	}), nil
}

// Remove deletes checkpoints, sealed or incomplete, by name. It removes all or none: it refuses, with InUse, a
// checkpoint that is being written or kept (Keep), or one with a child that is not among names. Payload stays until GC.
// Open files of removed checkpoints work until they are closed.
func (s *Set) Remove(_ context.Context, names []string) error {
	return s.removeFound("remove", names, func(name string) (*Root, error) { return s.resolve("remove", name) })
}

// WhyKept and HintKept tell why a checkpoint that Keep has stay is not removed, and what to do.
const (
	WhyKept  = "its memory is still being brought into restored processes"
	HintKept = "gpucr-fs stats STORE shows the restores; remove it when they are done"
)

// RemoveIDs is Remove by whole ids, so it removes what the caller has looked at, even if another checkpoint has the
// name by now.
func (s *Set) RemoveIDs(_ context.Context, ids []string) error {
	return s.removeFound("remove", ids, func(id string) (*Root, error) {
		if r := s.roots[id]; r != nil && !r.removing && !r.removed {
			return r, nil
		}
		return nil, NotFound("remove", id)
	})
}

func (s *Set) removeFound(op string, refs []string, find func(string) (*Root, error)) error {
	if err := s.chunks.MayWrite(op); err != nil {
		return err
	}
	victims, err := s.remove(op, refs, find)
	var errs []error
	for _, r := range victims {
		errs = append(errs, s.forgetIfUnused(r))
		s.Announce(r.Name())
	}
	return errors.Join(append(errs, err)...)
}

// remove commits the removal of checkpoints.
func (s *Set) remove(op string, refs []string, find func(string) (*Root, error)) ([]*Root, error) {
	s.updateMu.Lock()
	defer s.updateMu.Unlock()
	s.mu.Lock()
	victims, err := s.removable(op, refs, find)
	if err != nil || len(victims) == 0 {
		s.mu.Unlock()
		return nil, err
	}
	// From here on nobody finds them: no draft can be built on one that is about to go.
	puts := make([]chunks.Put, len(victims))
	for i, r := range victims {
		r.removing = true
		puts[i] = chunks.Put{Key: manifest.RootKey(r.ID)}
	}
	s.mu.Unlock()
	s.Hooks.Removing.Run()
	err = s.chunks.Commit(puts)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range victims {
		r.removing = false
		if r.removed = err == nil; r.removed && s.names[r.Name()] == r {
			delete(s.names, r.Name())
		}
	}
	if err != nil {
		return nil, err
	}
	return victims, nil
}

// removable gives the checkpoints that find leads to if they may be removed together. Call with updateMu and mu held.
func (s *Set) removable(op string, refs []string, find func(string) (*Root, error)) ([]*Root, error) {
	var victims []*Root
	for _, ref := range refs {
		r, err := find(ref)
		if err != nil {
			return nil, err
		}
		if r.writing {
			return nil, &fault.Error{Class: fault.InUse, Op: op, Checkpoint: r.Name(),
				Err: errors.New("it is being written")}
		}
		if r.keeps > 0 {
			return nil, &fault.Error{Class: fault.InUse, Op: op, Checkpoint: r.Name(),
				Err: errors.New(WhyKept), Hint: HintKept}
		}
		if !slices.Contains(victims, r) {
			victims = append(victims, r)
		}
	}
	for _, r := range victims {
		for _, child := range s.children(r.ID) {
			if !slices.Contains(victims, s.names[child]) {
				return nil, &fault.Error{Class: fault.InUse, Op: op, Checkpoint: r.Name(),
					Err:  fmt.Errorf("checkpoint %s is built on it", child),
					Hint: "remove " + child + " first, or both together"}
			}
		}
	}
	return victims, nil
}

// forgetIfUnused deletes what is left of a removed checkpoint once no file of it is open.
func (s *Set) forgetIfUnused(r *Root) error {
	s.mu.Lock()
	gone := r.removed && r.opens == 0 && s.roots[r.ID] == r
	if gone {
		delete(s.roots, r.ID)
		s.leaving[r.ID] = true
	}
	s.mu.Unlock()
	if !gone {
		return nil
	}
	defer s.left(r.ID)
	return s.deleteBody(r.ID)
}

// leave enters an id among those that are leaving, unless there is a checkpoint, or it is among them.
func (s *Set) leave(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.roots[id] != nil || s.leaving[id] {
		return false
	}
	s.leaving[id] = true
	return true
}

// left tells that the records of a checkpoint are deleted: one with the same id may come.
func (s *Set) left(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leaving, id)
}

// deleteBody deletes all keys of a checkpoint but its root. Call with its id among those that are leaving.
func (s *Set) deleteBody(id string) error {
	b := s.chunks.DB.Batch()
	for _, prefix := range []string{manifest.TablePrefix, manifest.SegmentPrefix, manifest.ProfilePrefix} {
		err := s.chunks.DB.MetaKeys(prefix+id, func(key string) error {
			b.DeleteMeta(key)
			return nil
		})
		if err != nil {
			return fault.Classify("remove", errors.Join(err, b.Flush()))
		}
	}
	return fault.Classify("remove", errors.Join(b.Flush(), s.dropHotSet(id)))
}

// Incomplete gives the names of checkpoints whose writer is gone.
func (s *Set) Incomplete() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []string{}
	for _, r := range s.roots {
		if !r.pb.Sealed && !r.writing {
			out = append(out, r.Name())
		}
	}
	slices.Sort(out)
	return out
}

// RemoveIncomplete deletes the records of checkpoints whose writer is gone, and records that belong to no checkpoint.
func (s *Set) RemoveIncomplete(ctx context.Context) error {
	s.mu.Lock()
	var gone []*Root
	for id, r := range s.roots {
		if !r.pb.Sealed && !r.writing {
			gone = append(gone, r)
			delete(s.roots, id)
			s.leaving[id] = true
			if s.names[r.Name()] == r {
				delete(s.names, r.Name())
			}
		}
	}
	s.mu.Unlock()
	defer func() {
		for _, r := range gone {
			s.left(r.ID)
		}
	}()
	for _, r := range gone {
		if err := errors.Join(s.chunks.PutLocal([]chunks.Put{{Key: manifest.RootKey(r.ID)}}),
			s.deleteBody(r.ID)); err != nil {
			return err
		}
		s.Announce(r.Name())
	}
	orphans := map[string]bool{}
	for _, prefix := range []string{manifest.TablePrefix, manifest.SegmentPrefix, manifest.ProfilePrefix} {
		err := s.chunks.DB.MetaKeys(prefix, func(key string) error {
			id := manifest.OwnerOf(key)
			s.mu.Lock()
			// A key that this program does not make is left alone.
			if s.roots[id] == nil && !s.damagedRoots[id] && manifest.ValidID(id) {
				orphans[id] = true
			}
			s.mu.Unlock()
			return ctx.Err()
		})
		if err != nil {
			return fault.Classify("gc", err)
		}
	}
	for id := range orphans {
		if !s.leave(id) {
			continue // it is being pulled now, or deleted by somebody else
		}
		err := s.deleteBody(id)
		s.left(id)
		if err != nil {
			return err
		}
	}
	return nil
}
