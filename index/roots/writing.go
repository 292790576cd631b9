package roots

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
)

// mayName refuses a name that is taken, or that some checkpoint or draft has as a tag, and tags that are names: what a
// word means would depend on who asks. Call with mu held.
func (s *Set) mayName(op, name string, tags []string) error {
	if name == s.reserved {
		return &fault.Error{Class: fault.Exists, Op: op, Checkpoint: name,
			Err: errors.New("one is just being given that name"), Hint: "choose another name"}
	}
	if old := s.names[name]; old != nil {
		if old.removing {
			return &fault.Error{Class: fault.InUse, Op: op, Checkpoint: name,
				Err: errors.New("one of that name is just being removed"), Hint: "try again"}
		}
		return taken(op, name, s.info(old).State)
	}
	for _, t := range tags {
		if t == name || s.names[t] != nil {
			return nameNotTag(op, t)
		}
	}
	for _, r := range s.names {
		if slices.Contains(r.pb.Tags, name) {
			return &fault.Error{Class: fault.Exists, Op: op, Checkpoint: name,
				Err:  fmt.Errorf("that is a tag of checkpoint %s", r.Name()),
				Hint: "choose another name, or take the tag off: gpucr-fs tag STORE " + r.Name() + " --remove " + name}
		}
	}
	return nil
}

func nameNotTag(op, tag string) error {
	return &fault.Error{Class: fault.Exists, Op: op, Err: fmt.Errorf("%q is the name of a checkpoint", tag),
		Hint: "choose another tag"}
}

func taken(op, name string, state State) error {
	e := &fault.Error{Class: fault.Exists, Op: op, Checkpoint: name, Err: errors.New("there is one of that name"),
		Hint: "choose another name, or remove it: gpucr-fs rm"}
	if state == Incomplete {
		e.Err = errors.New("an incomplete one of that name was left by a writer that died")
		e.Hint = "remove it with gpucr-fs rm or gc, then try again"
	}
	return e
}

func clonePB(pb *manifestpb.Checkpoint) *manifestpb.Checkpoint { return proto.CloneOf(pb) }

// Draft is who writes a checkpoint.
type Draft interface {
	// Relabel has change applied to the record of the draft; done is false when the draft has ended meanwhile.
	Relabel(change func(*manifestpb.Checkpoint) error) (done bool, err error)
}

// Begin enters a checkpoint that d writes, under the name and tags of its record. Class Exists when they are taken,
// InUse when its id is.
func (s *Set) Begin(op string, r *Root, d Draft) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mayName(op, r.pb.Name, r.pb.Tags); err != nil {
		return err
	}
	if s.roots[r.ID] != nil || s.leaving[r.ID] { // a checkpoint that is pulled again has the id that it had
		return &fault.Error{Class: fault.InUse, Op: op, Checkpoint: r.pb.Name,
			Err: errors.New("the same checkpoint is just being pulled or removed"), Hint: "try again"}
	}
	r.writing = true
	s.names[r.pb.Name] = r
	s.roots[r.ID] = r
	s.drafts[r.pb.Name] = d
	return nil
}

// Change replaces the record of a checkpoint that is being written by what change makes of a copy.
func (s *Set) Change(r *Root, change func(*manifestpb.Checkpoint) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	pb := clonePB(r.pb)
	if err := change(pb); err != nil {
		return err
	}
	r.pb = pb
	return nil
}

// Record gives the record of a checkpoint as it is now. It must not be changed.
func (s *Set) Record(r *Root) *manifestpb.Checkpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.pb
}

// SetParent records that a checkpoint that is being written needs another one, and gives the id of that.
func (s *Set) SetParent(r *Root, ref string) (id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ref != "" {
		p, err := s.sealed("set parent", ref)
		if err != nil {
			return "", err
		}
		id = p.ID
	}
	r.pb = clonePB(r.pb)
	r.pb.ParentId = id
	return id, nil
}

// Abort removes a checkpoint that was being written. With tried, a seal was tried before. It may have left the root
// record in a journal, and taken tags of others there.
func (s *Set) Abort(r *Root, tried bool, untagged []*Root) error {
	s.mu.Lock()
	delete(s.names, r.Name())
	delete(s.drafts, r.Name())
	delete(s.roots, r.ID)
	s.leaving[r.ID] = true
	s.mu.Unlock()
	defer s.left(r.ID)
	var err error
	if tried {
		err = s.commitAbort(r, untagged)
	} else {
		// An earlier draft of this name may have failed to take its seal back. It must not come up again either.
		err = errors.Join(s.chunks.Settle(), s.chunks.PutLocal([]chunks.Put{{Key: manifest.RootKey(r.ID)}}))
	}
	return errors.Join(err, s.deleteBody(r.ID))
}

// commitAbort takes back what a Seal that failed may have left in the journals.
func (s *Set) commitAbort(r *Root, untagged []*Root) error {
	s.updateMu.Lock()
	defer s.updateMu.Unlock()
	changed := map[*Root]*manifestpb.Checkpoint{}
	s.mu.Lock()
	for _, o := range untagged {
		if s.roots[o.ID] == o && !o.removed {
			changed[o] = o.pb
		}
	}
	s.mu.Unlock()
	puts, err := rootPuts(changed)
	return errors.Join(err, s.chunks.Commit(append(puts, chunks.Put{Key: manifest.RootKey(r.ID)})))
}

// sealing is the change of root records by which a checkpoint becomes sealed. No other changes meanwhile.
type sealing struct {
	s       *Set
	r       *Root
	pb      *manifestpb.Checkpoint
	changed map[*Root]*manifestpb.Checkpoint
}

// BeginSealing begins to seal r, whose record becomes pb, and to take its tags from those who bear them. end ends it.
func (s *Set) BeginSealing(r *Root, pb *manifestpb.Checkpoint) *sealing {
	s.updateMu.Lock()
	s.mu.Lock()
	defer s.mu.Unlock()
	return &sealing{s: s, r: r, pb: pb, changed: s.withoutTags(r, pb.Tags)}
}

// Others gives the checkpoints that lose a tag.
func (c *sealing) Others() []*Root { return slices.Collect(maps.Keys(c.changed)) }

// Puts gives the root records to commit, which make one frame of a journal: it is there as a whole or not at all.
func (c *sealing) Puts() ([]chunks.Put, error) {
	all := maps.Clone(c.changed)
	all[c.r] = c.pb
	return rootPuts(all)
}

// Done tells that the records are committed, and that so many files of the checkpoint are open.
func (c *sealing) Done(opens int) Info {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for o, pb := range c.changed {
		o.pb = pb
	}
	c.r.pb = c.pb
	c.r.opens += opens
	c.r.writing = false
	delete(s.drafts, c.r.Name())
	return s.info(c.r)
}

// End lets others change root records again.
func (c *sealing) End() { c.s.updateMu.Unlock() }

// Writers gives the number of checkpoints that are being written.
func (s *Set) Writers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.drafts)
}

// Left gives what is wrong about closing the store now: checkpoints that are being written, and open files.
func (s *Set) Left() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var left []error
	for name := range s.drafts {
		left = append(left, fmt.Errorf("checkpoint %s was not sealed", name))
	}
	for _, r := range s.roots {
		if r.opens > 0 {
			left = append(left, fmt.Errorf("checkpoint %s has %d open files", r.Name(), r.opens))
		}
	}
	return left
}
