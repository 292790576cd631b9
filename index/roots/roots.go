package roots

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
)

// Root is the root record of a checkpoint in memory. ID never changes; the other fields belong to Set.mu, and pb is
// replaced, never changed.
type Root struct {
	ID       string
	named    atomic.Pointer[string] // its name, for messages without Set.mu
	pb       *manifestpb.Checkpoint
	writing  bool // a Draft of this process is open on it
	removing bool // its removal is being committed: nobody finds it, and its name is not free yet
	removed  bool // gone for everyone but the files still open
	opens    int  // open files
	keeps    int  // those who need it to stay, see Set.Keep
}

// complete says whether the checkpoint is sealed. Call with Set.mu held.
func (r *Root) complete() bool { return r.pb.Sealed && !r.writing }

// NewRoot gives the root of a new checkpoint.
func NewRoot(pb *manifestpb.Checkpoint) *Root {
	r := &Root{ID: pb.Id, pb: pb}
	r.named.Store(&pb.Name)
	return r
}

// Name gives the name of the checkpoint now.
func (r *Root) Name() string { return *r.named.Load() }

// ValidName refuses what may not be chosen as a name or tag of a checkpoint: anything but ASCII letters, digits and the
// characters . _ - + : @ = ~ %, one other than a letter, digit or underscore in front, more than 128 characters, and
// what has the form of an id. Earlier versions allowed a dash in front and 16 hex digits. Checkpoints with such names
// are read and found as all others: [manifest.ValidName] tells which.
func ValidName(name string) error {
	if manifest.ValidName(name) && name[0] != '-' && !manifest.ValidID(name) {
		return nil
	}
	return &fault.Error{Class: fault.Invalid, Op: "name", Err: fmt.Errorf("%.140q cannot name a checkpoint", name),
		Hint: "use up to 128 letters, digits and . _ - + : @ = ~ %, with a letter, digit or underscore in front; " +
			"16 hex digits are the form of an id"}
}

// Load reads all root records. A damaged one is logged and left out: the others must stay reachable.
func (s *Set) Load() error {
	return s.chunks.DB.Metas(manifest.RootPrefix, func(key string, seq uint64, payload []byte, err error) error {
		s.chunks.CountBeyond(seq) // else what is said of it from now on would not count in an index that is built anew
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
			s.log.Error("a checkpoint's root record is damaged", "id", manifest.OwnerOf(key), "err", err,
				"hint", fault.RepairHint(s.o.Dir))
			return nil
		}
		r := NewRoot(pb)
		s.roots[pb.Id] = r
		if old := s.names[pb.Name]; old == nil || pb.Sealed && (!old.pb.Sealed || old.pb.SealedNs < pb.SealedNs) {
			s.names[pb.Name] = r
		}
		return nil
	})
}

// info describes a checkpoint. Call with mu held.
func (s *Set) info(r *Root) Info {
	i := s.describe(r)
	i.Children = s.children(r.ID)
	return i
}

// describe is info without the children, which take a look at every other checkpoint.
func (s *Set) describe(r *Root) Info {
	pb := r.pb
	i := Info{
		Name: pb.Name, ID: pb.Id, State: Sealed, Created: time.Unix(0, pb.CreatedNs).UTC(), Tags: slices.Clone(pb.Tags),
		Files: int(pb.Files), Logical: pb.Logical, Zero: pb.Zero, Labels: maps.Clone(pb.Labels), Restoring: r.keeps > 0,
		Bucket: hex.EncodeToString(pb.Bucket),
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
		i.Parent = p.Name()
	}
	return i
}

// children gives the names of checkpoints whose parent is id. Call with mu held.
func (s *Set) children(id string) []string {
	var out []string
	for _, r := range s.names {
		if r.pb.ParentId == id && !r.removing {
			out = append(out, r.Name())
		}
	}
	sort.Strings(out)
	return out
}

// Names gives all checkpoints, oldest first, with Logical and Zero, without Unique, Shared and Stored.
func (s *Set) Names(context.Context) ([]Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kids := map[string][]string{}
	for _, r := range s.names {
		if r.pb.ParentId != "" && !r.removing {
			kids[r.pb.ParentId] = append(kids[r.pb.ParentId], r.Name())
		}
	}
	out := make([]Info, 0, len(s.names))
	for _, r := range s.names {
		if r.removing {
			continue
		}
		i := s.describe(r)
		i.Children = kids[r.ID]
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

// NotFound is the error of a checkpoint that is not there.
func NotFound(op, ref string) error {
	return &fault.Error{Class: fault.NotFound, Op: op, Err: fmt.Errorf("no checkpoint %q", ref),
		Hint: "list them with: gpucr-fs ls"}
}

// resolve finds a checkpoint that is not being removed: by name; by tag, if it is sealed; by unique prefix of its
// id. Two with one tag, which earlier versions could leave, are not chosen from. Call with mu held.
func (s *Set) resolve(op, ref string) (*Root, error) {
	if r := s.names[ref]; r != nil {
		if r.removing {
			return nil, NotFound(op, ref)
		}
		return r, nil
	}
	var tagged, found []*Root
	for _, r := range s.names {
		if r.removing {
			continue
		}
		if r.complete() && slices.Contains(r.pb.Tags, ref) {
			tagged = append(tagged, r)
		}
		if len(ref) >= 4 && strings.HasPrefix(r.ID, ref) {
			found = append(found, r)
		}
	}
	byName := func(a, b *Root) int { return strings.Compare(a.Name(), b.Name()) }
	switch {
	case len(tagged) == 1:
		return tagged[0], nil
	case len(tagged) > 1:
		slices.SortFunc(tagged, byName)
		return nil, &fault.Error{Class: fault.Invalid, Op: op,
			Err:  fmt.Errorf("%q is a tag of %s and of %s", ref, tagged[0].Name(), tagged[1].Name()),
			Hint: "give the name, and put the tag on the right one again: gpucr-fs tag STORE NAME " + ref}
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		slices.SortFunc(found, byName)
		return nil, &fault.Error{Class: fault.Invalid, Op: op,
			Err:  fmt.Errorf("%q begins the id of %s and of %s", ref, found[0].Name(), found[1].Name()),
			Hint: "give more digits, or the name"}
	}
	return nil, NotFound(op, ref)
}

// sealed is resolve for those who need a complete checkpoint. Call with mu held.
func (s *Set) sealed(op, ref string) (*Root, error) {
	r, err := s.resolve(op, ref)
	if err != nil {
		return nil, err
	}
	if r.writing || !r.pb.Sealed {
		e := &fault.Error{Class: fault.Invalid, Op: op, Checkpoint: r.Name(),
			Err:  errors.New("it is incomplete: its writer ended before sealing it"),
			Hint: "remove it with: gpucr-fs rm"}
		if r.writing {
			e.Class, e.Err = fault.InUse, errors.New("it is still being written")
			e.Hint = "seal it with: gpucr-fs seal"
		}
		return nil, e
	}
	return r, nil
}

// RootRecords gives what is to be told of the roots with these keys; nil for one that is gone, or is not there yet.
func (s *Set) RootRecords(keys []string) ([][]byte, error) {
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
