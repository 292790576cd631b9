package model

import (
	"slices"
	"strings"
	"sync"
)

// state is what the store may hold: names of checkpoints with the contents they may have. A step widens it before it
// begins, and narrows it when the store has answered: between the two a crash may leave either.
type state struct {
	mu      sync.Mutex
	names   map[string]*entry
	tagging turns // of steps that change tags: each may concern all names
	moves   []*moving
	removes []*removing
}

// moving is a change of a name that is at work.
type moving struct{ from, to *entry }

// removing is a removal at work. comes is what moves that are at work at the same time may bring under the name: they
// may be carried out after it, whoever is answered first.
type removing struct {
	e     *entry
	comes []*version
}

// spread widens what may be found under the new names of moves that are at work: another step may have widened what
// they take along, and be carried out first. Call with mu held, when a step has widened a name.
func (s *state) spread() {
	for range s.moves { // a chain of moves takes at most as many rounds
		for _, m := range s.moves {
			for _, v := range m.from.versions {
				m.to.versions = add(m.to.versions, v)
				for _, r := range s.removes {
					if r.e == m.to {
						r.comes = add(r.comes, v)
					}
				}
			}
			for _, v := range m.from.ever {
				m.to.ever = add(m.to.ever, v)
			}
			for _, set := range m.from.tags {
				m.to.tags = add(m.to.tags, set)
			}
			for _, p := range m.from.profiles {
				m.to.profiles = add(m.to.profiles, p)
			}
		}
	}
}

// entry is what is known of one name. Slices are replaced or appended to under state.mu; what they point to is never
// changed but for version.files while the version is being sealed.
type entry struct {
	versions []*version // what may be found under the name
	absent   bool       // nothing may be
	ever     []*version // what may ever have been
	tags     []string   // the sets of tags it may bear, each sorted and joined by commas
	profiles []string
	turns
}

// version is the files of a checkpoint with the contents that each may have; nil: any. cut has those that a copy of
// them may not share all chunks with.
type version struct {
	files map[string][][]byte
	cut   map[string]bool
}

func newState() *state { return &state{names: map[string]*entry{}} }

func (s *state) clone() *state {
	out := newState()
	for name, e := range s.names {
		c := *e
		c.versions, c.ever = slices.Clip(e.versions), slices.Clip(e.ever)
		c.tags, c.profiles = slices.Clip(e.tags), slices.Clip(e.profiles)
		out.names[name] = &c
	}
	return out
}

// entry gives the entry of a name. Call with mu held.
func (s *state) entry(name string) *entry {
	e := s.names[name]
	if e == nil {
		e = &entry{absent: true, tags: []string{""}, profiles: []string{""}}
		s.names[name] = e
	}
	return e
}

// may says whether a checkpoint may be found under the name.
func (e *entry) may() bool { return len(e.versions) > 0 }

func add[T comparable](list []T, v T) []T {
	if slices.Contains(list, v) {
		return list
	}
	return append(slices.Clip(list), v)
}

// turns counts steps that are at work, and how often one began while another was.
type turns struct{ steps, clashes int }

// begin counts a step. The function it gives ends that, and tells whether no other step was at work meanwhile.
func (t *turns) begin() (end func() (alone bool)) {
	alone := t.steps == 0
	if !alone {
		t.clashes++
	}
	t.steps++
	clashes := t.clashes
	return func() bool {
		t.steps--
		return alone && t.clashes == clashes
	}
}

// seal is begun when a draft is being sealed. done ends that: with what is sealed, or nil where it failed.
func (s *state) seal(name string, v *version, tags string) (done func(final *version)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entry(name)
	end := e.begin()
	e.versions, e.ever = append(slices.Clip(e.versions), v), append(slices.Clip(e.ever), v)
	e.tags, e.profiles = add(e.tags, tags), add(e.profiles, "")
	s.spread()
	return func(final *version) {
		s.mu.Lock()
		defer s.mu.Unlock()
		alone := end()
		if final == nil {
			return
		}
		e.versions, e.ever = []*version{final}, append(slices.Clip(e.ever), final)
		if alone {
			e.absent, e.tags, e.profiles = false, []string{tags}, []string{""}
		}
		s.spread()
	}
}

// remove is begun when a name is being removed.
func (s *state) remove(name string) (done func(ok bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entry(name)
	end := e.begin()
	e.absent = true
	before := slices.Clone(e.versions)
	r := &removing{e: e}
	s.removes = append(s.removes, r)
	s.spread()
	return func(ok bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.removes = slices.DeleteFunc(s.removes, func(o *removing) bool { return o == r })
		alone := end()
		if !ok {
			return
		}
		// What another step has sealed or moved there meanwhile stays.
		e.versions = slices.DeleteFunc(slices.Clone(e.versions), func(v *version) bool {
			return slices.Contains(before, v) && !slices.Contains(r.comes, v)
		})
		if alone {
			e.tags, e.profiles = []string{""}, []string{""}
		}
	}
}

func withTag(set, tag string) string {
	all := strings.Split(set, ",")
	if set == "" {
		all = nil
	}
	all = add(all, tag)
	slices.Sort(all)
	return strings.Join(all, ",")
}

func withoutTag(set, tag string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(set, ","), func(t string) bool { return t == tag }), ",")
}

// tag is begun when a tag is given to a name, or taken off it.
func (s *state) tag(name, tag string, on bool) (done func(ok bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entry(name)
	end := e.begin()
	endTags := s.tagging.begin()
	change := func(e *entry, on, only bool) {
		var out []string
		if !only {
			out = slices.Clone(e.tags)
		}
		for _, set := range e.tags {
			if on {
				out = add(out, withTag(set, tag))
			} else {
				out = add(out, withoutTag(set, tag))
			}
		}
		e.tags = out
	}
	change(e, on, false)
	if on {
		for other, o := range s.names {
			if other != name {
				change(o, false, false)
			}
		}
	}
	s.spread()
	return func(ok bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if alone, only := end(), endTags(); ok && alone && only {
			change(e, on, true)
			for other, o := range s.names {
				if on && other != name {
					change(o, false, true)
				}
			}
		}
	}
}

// profile is begun when a profile is stored.
func (s *state) profile(name, profile string) (done func(ok bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entry(name)
	end := e.begin()
	e.profiles = add(e.profiles, profile)
	s.spread()
	return func(ok bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if alone := end(); ok && alone {
			e.profiles = []string{profile}
		}
	}
}

// move is begun when a name is being changed. done ends that; refused: nothing was tried.
func (s *state) move(from, to string) (done func(ok, refused bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, b := s.entry(from), s.entry(to)
	ends := []func() bool{a.begin(), b.begin(), s.tagging.begin()}
	wasA, wasB := *a, *b
	a.absent = true
	m := &moving{a, b}
	s.moves = append(s.moves, m)
	s.spread()
	return func(ok, refused bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.moves = slices.DeleteFunc(s.moves, func(o *moving) bool { return o == m })
		alone := true
		for _, end := range ends {
			alone = end() && alone
		}
		switch {
		case alone && refused:
			a.absent = wasA.absent
			b.versions, b.tags, b.profiles = wasB.versions, wasB.tags, wasB.profiles
		case alone && ok:
			b.versions, b.tags, b.profiles, b.absent = wasA.versions, wasA.tags, wasA.profiles, false
			a.versions, a.tags, a.profiles = nil, []string{""}, []string{""}
		}
	}
}
