package roots

import (
	"context"
	"fmt"
	"slices"
	"sort"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
)

// rootPuts gives the records of changed roots.
func rootPuts(changed map[*Root]*manifestpb.Checkpoint) ([]chunks.Put, error) {
	var puts []chunks.Put
	for _, pb := range changed {
		payload, err := manifest.EncodeCheckpoint(pb)
		if err != nil {
			return nil, fault.Classify("write root record", err)
		}
		puts = append(puts, chunks.Put{Key: manifest.RootKey(pb.Id), Payload: payload})
	}
	return puts, nil
}

// withoutTags gives the records that all sealed checkpoints but r are to have when r takes these tags: a tag names one
// checkpoint at most. A draft keeps its tags, and takes them when it is sealed. Call with updateMu and mu held.
func (s *Set) withoutTags(r *Root, tags []string) map[*Root]*manifestpb.Checkpoint {
	out := map[*Root]*manifestpb.Checkpoint{}
	taken := func(t string) bool { return slices.Contains(tags, t) }
	for _, o := range s.names {
		if o != r && o.complete() && slices.ContainsFunc(o.pb.Tags, taken) {
			out[o] = clonePB(o.pb)
			out[o].Tags = slices.DeleteFunc(out[o].Tags, taken)
		}
	}
	return out
}

// Tag adds and removes tags of a sealed checkpoint. A tag names at most one checkpoint: adding it takes it from
// another. Names of checkpoints cannot be tags.
func (s *Set) Tag(_ context.Context, name string, add, remove []string) error {
	if err := s.chunks.MayWrite("tag"); err != nil {
		return err
	}
	const op = "tag"
	for _, t := range add {
		if err := ValidName(t); err != nil {
			return err
		}
	}
	return s.update(func() (map[*Root]*manifestpb.Checkpoint, error) { return s.retag(op, name, add, remove) })
}

// update replaces the root records of sealed checkpoints by those that change gives, which is called with updateMu and
// mu held.
func (s *Set) update(change func() (map[*Root]*manifestpb.Checkpoint, error)) error {
	changed, err := s.commitRoots(change)
	if err != nil {
		return err
	}
	for o := range changed {
		s.Announce(o.Name())
	}
	return nil
}

func (s *Set) commitRoots(
	change func() (map[*Root]*manifestpb.Checkpoint, error),
) (map[*Root]*manifestpb.Checkpoint, error) {
	s.updateMu.Lock()
	defer s.updateMu.Unlock()
	s.mu.Lock()
	changed, err := change()
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	s.Hooks.Updating.Run()
	puts, err := rootPuts(changed)
	if err != nil {
		return nil, err
	}
	if err := s.chunks.Commit(puts); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for o, pb := range changed {
		o.pb = pb
		if old := o.Name(); old != pb.Name {
			delete(s.names, old)
			s.names[pb.Name] = o
			o.named.Store(&pb.Name)
		}
	}
	return changed, nil
}

// Rename gives a sealed checkpoint another name; its id, tags, profile and time stay, and open files of it go on. Class
// Exists when the name is taken, by a tag too.
func (s *Set) Rename(_ context.Context, ref, name string) error {
	if err := s.chunks.MayWrite("rename"); err != nil {
		return err
	}
	const op = "rename"
	if err := ValidName(name); err != nil {
		return err
	}
	old := ""
	err := s.update(func() (map[*Root]*manifestpb.Checkpoint, error) {
		r, err := s.sealed(op, ref)
		if err != nil {
			return nil, err
		}
		if err := s.mayName(op, name, nil); err != nil {
			return nil, err
		}
		old = r.Name()
		s.reserved = name
		pb := clonePB(r.pb)
		pb.Name = name
		return map[*Root]*manifestpb.Checkpoint{r: pb}, nil
	})
	if old != "" {
		s.mu.Lock()
		s.reserved = ""
		s.mu.Unlock()
	}
	if err == nil {
		s.Announce(old)
	}
	return err
}

// retag gives the root records that Tag is to write. Call with updateMu and mu held.
func (s *Set) retag(op, name string, add, remove []string) (map[*Root]*manifestpb.Checkpoint, error) {
	r, err := s.sealed(op, name)
	if err != nil {
		return nil, err
	}
	pb := clonePB(r.pb)
	for _, t := range add {
		if s.names[t] != nil {
			return nil, nameNotTag(op, t)
		}
		if !slices.Contains(pb.Tags, t) {
			pb.Tags = append(pb.Tags, t)
		}
	}
	for _, t := range remove {
		if !slices.Contains(pb.Tags, t) {
			return nil, &fault.Error{Class: fault.NotFound, Op: op, Checkpoint: pb.Name,
				Err: fmt.Errorf("no tag %q", t)}
		}
	}
	pb.Tags = slices.DeleteFunc(pb.Tags, func(t string) bool { return slices.Contains(remove, t) })
	sort.Strings(pb.Tags)
	changed := s.withoutTags(r, add)
	changed[r] = pb
	return changed, nil
}
