package remotes

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/remote"
)

// Remove removes checkpoints from the remote store, for all machines, and gives the names of those that it has removed,
// also with an error. It removes none unless all of them stand, and refuses, with InUse, one that an incremental
// checkpoint there needs which is not among them. One that is still on its way there is not seen: its push looks for
// its parent afterwards.
func (r *Remote) Remove(ctx context.Context, names []string) (removed []string, err error) {
	s, err := r.Store(ctx)
	if err != nil {
		return nil, err
	}
	all, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if slices.ContainsFunc(all, func(e remote.Entry) bool { return e.Name == name }) {
			continue
		}
		if err := s.Stands(ctx, name); err != nil { // one whose root is damaged is not listed, and stands
			return nil, err
		}
	}
	order, err := childrenFirst(all, names)
	if err != nil {
		return nil, err
	}
	for i, name := range order {
		// One that is gone by now was removed by another machine.
		if err := s.Remove(ctx, name); err != nil && index.ClassOf(err) != index.NotFound {
			return order[:i], err
		}
		r.NoteRemoved(name)
	}
	return order, nil
}

// childrenFirst gives names of checkpoints, each once, after those that are built on it: whoever reads one meanwhile
// finds what it needs. It refuses one that another needs which is not among the names.
func childrenFirst(all []remote.Entry, names []string) (order []string, err error) {
	going, ids := map[string]bool{}, map[string]string{}
	children, named := map[string][]remote.Entry{}, map[string][]remote.Entry{} // by ids and by names of their parents
	for _, name := range names {
		going[name] = true
	}
	for _, e := range all {
		ids[e.Name] = e.ID
		if e.ParentID != "" {
			children[e.ParentID] = append(children[e.ParentID], e)
			named[e.Parent] = append(named[e.Parent], e)
		}
	}
	seen := map[string]bool{}
	var visit func(name string) error
	visit = func(name string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		needing := children[ids[name]]
		if ids[name] == "" {
			needing = named[name] // its root could not be read
		}
		for _, c := range needing {
			if c.Parent != name && ids[c.Parent] == c.ParentID {
				continue // the parent has another name too, by which it is found
			}
			if !going[c.Name] {
				return &index.Error{Class: index.InUse, Op: "rm", Checkpoint: name,
					Hint: "remove " + c.Name + " too, or first",
					Err:  fmt.Errorf("checkpoint %s of the remote store is incremental and needs it", c.Name)}
			}
			if err := visit(c.Name); err != nil {
				return err
			}
		}
		order = append(order, name)
		return nil
	}
	for _, name := range names {
		if err := visit(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}
