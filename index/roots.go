package index

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// root is the record of a checkpoint in memory. id never changes; the other fields belong to Store.mu, and pb is replaced, never changed.
type root struct {
	id       string
	named    atomic.Pointer[string] // its name, for messages without Store.mu
	pb       *manifestpb.Checkpoint
	writing  bool // a Draft of this process is open on it
	removing bool // its removal is being committed: nobody finds it, and its name is not free yet
	removed  bool // gone for everyone but the files still open
	opens    int  // open files
}

// complete says whether the checkpoint is sealed. Call with Store.mu held.
func (r *root) complete() bool { return r.pb.Sealed && !r.writing }

func newRoot(pb *manifestpb.Checkpoint) *root {
	r := &root{id: pb.Id, pb: pb}
	r.named.Store(&pb.Name)
	return r
}

func (r *root) name() string { return *r.named.Load() }

// ValidName refuses what cannot name a checkpoint or tag: anything but ASCII letters, digits and the characters . _ - + : @ = ~ %, one other than a letter, digit, dash or
// underscore in front, more than 128 characters.
func ValidName(name string) error {
	if !manifest.ValidName(name) {
		return &fault.Error{Class: fault.Invalid, Op: "name", Err: fmt.Errorf("%q cannot name a checkpoint", name),
			Hint: "use up to 128 letters, digits and . _ - + : @ = ~ %, and a letter, digit, dash or underscore in front"}
	}
	return nil
}

// loadRoots reads all root records. A damaged one is logged and left out: the others must stay reachable.
func (s *Store) loadRoots() error {
	return s.chunks.DB.Metas(manifest.RootPrefix, func(key string, seq uint64, payload []byte, err error) error {
		s.chunks.LaterThan(seq)
		if err == nil && len(payload) == 0 {
			return nil // removed
		}
		var pb *manifestpb.Checkpoint
		if err == nil {
			pb, err = manifest.DecodeCheckpoint(payload)
		}
		if err == nil && pb.Id != manifest.OwnerOf(key) {
			err = fmt.Errorf("%w: it is that of %s", keys.ErrDamaged, pb.Id)
		}
		if errors.Is(err, manifest.ErrVersion) {
			return &fault.Error{Class: fault.Unsupported, Op: "open store", Err: err, Hint: "use a later gpucr-fs"}
		}
		if err != nil {
			s.damagedRoots[manifest.OwnerOf(key)] = true
			s.log.Error("a checkpoint's root record is damaged", "id", manifest.OwnerOf(key), "err", err, "hint", fault.RepairHint(s.dir))
			return nil
		}
		r := newRoot(pb)
		s.roots[pb.Id] = r
		if old := s.names[pb.Name]; old == nil || pb.Sealed && (!old.pb.Sealed || old.pb.SealedNs < pb.SealedNs) {
			s.names[pb.Name] = r
		}
		return nil
	})
}

// info describes a checkpoint. Call with mu held.
func (s *Store) info(r *root) Info {
	i := s.describe(r)
	i.Children = s.children(r.id)
	return i
}

// describe is info without the children, which take a look at every other checkpoint.
func (s *Store) describe(r *root) Info {
	pb := r.pb
	i := Info{
		Name: pb.Name, ID: pb.Id, State: Sealed, Created: time.Unix(0, pb.CreatedNs).UTC(), Tags: slices.Clone(pb.Tags),
		Files: int(pb.Files), Logical: pb.Logical, Zero: pb.Zero, Labels: maps.Clone(pb.Labels),
	}
	switch {
	case r.writing:
		i.State = Writing
	case !pb.Sealed:
		i.State = Incomplete
	default:
		i.SealedAt = time.Unix(0, pb.SealedNs).UTC()
	}
	if p := s.roots[pb.ParentId]; p != nil {
		i.Parent = p.name()
	}
	return i
}

// children gives the names of checkpoints whose parent is id. Call with mu held.
func (s *Store) children(id string) []string {
	var out []string
	for _, r := range s.names {
		if r.pb.ParentId == id && !r.removing {
			out = append(out, r.name())
		}
	}
	sort.Strings(out)
	return out
}

// Names gives all checkpoints, oldest first, with Logical and Zero, without Unique, Shared and Stored.
func (s *Store) Names(context.Context) ([]Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kids := map[string][]string{}
	for _, r := range s.names {
		if r.pb.ParentId != "" && !r.removing {
			kids[r.pb.ParentId] = append(kids[r.pb.ParentId], r.name())
		}
	}
	out := make([]Info, 0, len(s.names))
	for _, r := range s.names {
		if r.removing {
			continue
		}
		i := s.describe(r)
		i.Children = kids[r.id]
		sort.Strings(i.Children)
		out = append(out, i)
	}
	slices.SortFunc(out, func(a, b Info) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out, nil
}

func notFound(op, ref string) error {
	return &fault.Error{Class: fault.NotFound, Op: op, Err: fmt.Errorf("no checkpoint %q", ref), Hint: "list them with: gpucr-fs ls"}
}

// resolve finds a checkpoint that is not being removed: by name; by tag, if it is sealed; by unique prefix of its id. Two
// with one tag, which earlier versions could leave, are not chosen from. Call with mu held.
func (s *Store) resolve(op, ref string) (*root, error) {
	if r := s.names[ref]; r != nil {
		if r.removing {
			return nil, notFound(op, ref)
		}
		return r, nil
	}
	var tagged, found []*root
	for _, r := range s.names {
		if r.removing {
			continue
		}
		if r.complete() && slices.Contains(r.pb.Tags, ref) {
			tagged = append(tagged, r)
		}
		if len(ref) >= 4 && strings.HasPrefix(r.id, ref) {
			found = append(found, r)
		}
	}
	byName := func(a, b *root) int { return strings.Compare(a.name(), b.name()) }
	switch {
	case len(tagged) == 1:
		return tagged[0], nil
	case len(tagged) > 1:
		slices.SortFunc(tagged, byName)
		return nil, &fault.Error{Class: fault.Invalid, Op: op, Err: fmt.Errorf("%q is a tag of %s and of %s", ref, tagged[0].name(), tagged[1].name()),
			Hint: "give the name, and put the tag on the right one again: gpucr-fs tag STORE NAME " + ref}
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		slices.SortFunc(found, byName)
		return nil, &fault.Error{Class: fault.Invalid, Op: op, Err: fmt.Errorf("%q begins the id of %s and of %s", ref, found[0].name(), found[1].name()), Hint: "give more digits, or the name"}
	}
	return nil, notFound(op, ref)
}

// sealed is resolve for those who need a complete checkpoint. Call with mu held.
func (s *Store) sealed(op, ref string) (*root, error) {
	r, err := s.resolve(op, ref)
	if err != nil {
		return nil, err
	}
	if r.writing || !r.pb.Sealed {
		class, why, hint := fault.Invalid, "it is incomplete: its writer ended before sealing it", "remove it with: gpucr-fs rm"
		if r.writing {
			class, why, hint = fault.InUse, "it is still being written", "seal it with: gpucr-fs seal"
		}
		return nil, &fault.Error{Class: class, Op: op, Checkpoint: r.name(), Err: errors.New(why), Hint: hint}
	}
	return r, nil
}

// Checkpoint finds a sealed checkpoint by name, tag, or unique prefix (at least 4 digits) of its ID, in this order. Class NotFound.
func (s *Store) Checkpoint(ref string) (*Checkpoint, error) {
	s.mu.Lock()
	r, err := s.sealed("open checkpoint", ref)
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	pb := r.pb
	s.mu.Unlock()
	return s.load(r, pb)
}

// Latest is the checkpoint sealed last. Class NotFound in a store without any.
func (s *Store) Latest() (*Checkpoint, error) {
	s.mu.Lock()
	var last *root
	for _, r := range s.names {
		if r.complete() && !r.removing && (last == nil || r.pb.SealedNs > last.pb.SealedNs) {
			last = r
		}
	}
	if last == nil {
		s.mu.Unlock()
		return nil, &fault.Error{Class: fault.NotFound, Op: "open checkpoint", Err: errors.New("the store has no sealed checkpoint"), Hint: "make one with: gpucr-fs import, or criu dump into the mount"}
	}
	pb := last.pb
	s.mu.Unlock()
	return s.load(last, pb)
}

// Remove deletes checkpoints, sealed or incomplete, by name. All or none: one that is being written, or whose child is not among names, is refused with InUse. Payload
// stays until GC. Files of them that are open go on working until closed.
func (s *Store) Remove(_ context.Context, names []string) error {
	return s.removeFound("remove", names, func(name string) (*root, error) { return s.resolve("remove", name) })
}

// RemoveIDs is Remove by whole ids: what was looked at is what goes, whoever has its name by now.
func (s *Store) RemoveIDs(_ context.Context, ids []string) error {
	return s.removeFound("remove", ids, func(id string) (*root, error) {
		if r := s.roots[id]; r != nil && !r.removing && !r.removed {
			return r, nil
		}
		return nil, notFound("remove", id)
	})
}

func (s *Store) removeFound(op string, refs []string, find func(string) (*root, error)) error {
	if err := s.chunks.MayWrite(op); err != nil {
		return err
	}
	victims, err := s.remove(op, refs, find)
	var errs []error
	for _, r := range victims {
		errs = append(errs, s.forgetIfUnused(r))
		s.announce(r.name())
	}
	return errors.Join(append(errs, err)...)
}

// remove commits the removal of checkpoints.
func (s *Store) remove(op string, refs []string, find func(string) (*root, error)) ([]*root, error) {
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
		puts[i] = chunks.Put{Key: manifest.RootKey(r.id)}
	}
	s.mu.Unlock()
	err = s.chunks.Commit(puts)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range victims {
		r.removing = false
		if r.removed = err == nil; r.removed && s.names[r.name()] == r {
			delete(s.names, r.name())
		}
	}
	if err != nil {
		return nil, err
	}
	return victims, nil
}

// removable gives the checkpoints that find leads to if they may be removed together. Call with updateMu and mu held.
func (s *Store) removable(op string, refs []string, find func(string) (*root, error)) ([]*root, error) {
	var victims []*root
	for _, ref := range refs {
		r, err := find(ref)
		if err != nil {
			return nil, err
		}
		if r.writing {
			return nil, &fault.Error{Class: fault.InUse, Op: op, Checkpoint: r.name(), Err: errors.New("it is being written")}
		}
		if !slices.Contains(victims, r) {
			victims = append(victims, r)
		}
	}
	for _, r := range victims {
		for _, child := range s.children(r.id) {
			if !slices.Contains(victims, s.names[child]) {
				return nil, &fault.Error{Class: fault.InUse, Op: op, Checkpoint: r.name(), Err: fmt.Errorf("checkpoint %s is built on it", child),
					Hint: "remove " + child + " first, or both together"}
			}
		}
	}
	return victims, nil
}

// forgetIfUnused deletes what is left of a removed checkpoint once no file of it is open.
func (s *Store) forgetIfUnused(r *root) error {
	s.mu.Lock()
	gone := r.removed && r.opens == 0 && s.roots[r.id] == r
	if gone {
		delete(s.roots, r.id)
	}
	s.mu.Unlock()
	if !gone {
		return nil
	}
	return s.deleteBody(r.id)
}

// deleteBody deletes all keys of a checkpoint but its root.
func (s *Store) deleteBody(id string) error {
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

// rootPuts gives the records of changed roots.
func rootPuts(changed map[*root]*manifestpb.Checkpoint) ([]chunks.Put, error) {
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
func (s *Store) withoutTags(r *root, tags []string) map[*root]*manifestpb.Checkpoint {
	out := map[*root]*manifestpb.Checkpoint{}
	taken := func(t string) bool { return slices.Contains(tags, t) }
	for _, o := range s.names {
		if o != r && o.complete() && slices.ContainsFunc(o.pb.Tags, taken) {
			out[o] = clonePB(o.pb)
			out[o].Tags = slices.DeleteFunc(out[o].Tags, taken)
		}
	}
	return out
}

// Tag adds and removes tags of a sealed checkpoint. A tag names at most one checkpoint: adding it takes it from another.
// Names of checkpoints cannot be tags.
func (s *Store) Tag(_ context.Context, name string, add, remove []string) error {
	if err := s.chunks.MayWrite("tag"); err != nil {
		return err
	}
	const op = "tag"
	for _, t := range add {
		if err := ValidName(t); err != nil {
			return err
		}
	}
	return s.update(func() (map[*root]*manifestpb.Checkpoint, error) { return s.retag(op, name, add, remove) })
}

// update replaces the root records of sealed checkpoints by those that change gives, which is called with updateMu and
// mu held.
func (s *Store) update(change func() (map[*root]*manifestpb.Checkpoint, error)) error {
	changed, err := s.commitRoots(change)
	if err != nil {
		return err
	}
	for o := range changed {
		s.announce(o.name())
	}
	return nil
}

func (s *Store) commitRoots(change func() (map[*root]*manifestpb.Checkpoint, error)) (map[*root]*manifestpb.Checkpoint, error) {
	s.updateMu.Lock()
	defer s.updateMu.Unlock()
	s.mu.Lock()
	changed, err := change()
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	s.hooks.updating.Run()
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
		if old := o.name(); old != pb.Name {
			delete(s.names, old)
			s.names[pb.Name] = o
			o.named.Store(&pb.Name)
		}
	}
	return changed, nil
}

// Rename gives a sealed checkpoint another name; its id, tags, profile and place in time stay, and who has files of it open
// goes on. Class Exists when the name is taken, by a tag too.
func (s *Store) Rename(_ context.Context, ref, name string) error {
	if err := s.chunks.MayWrite("rename"); err != nil {
		return err
	}
	const op = "rename"
	if err := ValidName(name); err != nil {
		return err
	}
	old := ""
	err := s.update(func() (map[*root]*manifestpb.Checkpoint, error) {
		r, err := s.sealed(op, ref)
		if err != nil {
			return nil, err
		}
		if err := s.mayName(op, name, nil); err != nil {
			return nil, err
		}
		old = r.name()
		s.coming = name
		pb := clonePB(r.pb)
		pb.Name = name
		return map[*root]*manifestpb.Checkpoint{r: pb}, nil
	})
	if old != "" {
		s.mu.Lock()
		s.coming = ""
		s.mu.Unlock()
	}
	if err == nil {
		s.announce(old)
	}
	return err
}

// retag gives the root records that Tag is to write. Call with updateMu and mu held.
func (s *Store) retag(op, name string, add, remove []string) (map[*root]*manifestpb.Checkpoint, error) {
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
			return nil, &fault.Error{Class: fault.NotFound, Op: op, Checkpoint: pb.Name, Err: fmt.Errorf("no tag %q", t)}
		}
	}
	pb.Tags = slices.DeleteFunc(pb.Tags, func(t string) bool { return slices.Contains(remove, t) })
	sort.Strings(pb.Tags)
	changed := s.withoutTags(r, add)
	changed[r] = pb
	return changed, nil
}

// Profile gives the profile stored with a sealed checkpoint: bytes that mean something to those who stored them. Class NotFound when there is none.
func (s *Store) Profile(ref string) ([]byte, error) {
	const op = "read profile"
	s.mu.Lock()
	r, err := s.sealed(op, ref)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	_, payload, err := s.chunks.DB.Meta(manifest.ProfileKey(r.id))
	if errors.Is(err, keys.ErrMissing) || err == nil && len(payload) == 0 {
		return nil, &fault.Error{Class: fault.NotFound, Op: op, Checkpoint: r.name(), Err: errors.New("no profile"), Hint: "a first restore records one"}
	}
	if err != nil {
		return nil, &fault.Error{Class: fault.Corrupt, Op: op, Checkpoint: r.name(), Err: err, Hint: "clear it: the next restore records a new one"}
	}
	return payload, nil
}

// SetProfile stores a profile with a sealed checkpoint; nil clears it. The hot set of an earlier one goes.
func (s *Store) SetProfile(ref string, profile []byte) error {
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
		return &fault.Error{Class: fault.Invalid, Op: op, Checkpoint: r.name(), Err: pack.ErrTooLarge}
	}
	if err := s.dropHotSet(r.id); err != nil {
		return fault.Classify(op, err)
	}
	// Cleared, it stays as an empty record, which keeps an older journal from bringing it back.
	return s.chunks.Commit([]chunks.Put{{Key: manifest.ProfileKey(r.id), Payload: append([]byte{}, profile...)}})
}

// RootRecords gives what is to be told of the roots with these keys; nil for one that is no more, or not yet.
func (s *Store) RootRecords(keys []string) ([][]byte, error) {
	out := make([][]byte, len(keys))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, key := range keys {
		if r := s.roots[manifest.OwnerOf(key)]; r != nil && !r.removed && !r.writing && r.pb.Sealed {
			var err error
			if out[i], err = manifest.EncodeCheckpoint(r.pb); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}
