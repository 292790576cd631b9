package uffd

import (
	"fmt"
	"slices"
	"sort"
	"time"
)

// A forked child gets what its parent has marked by MADV_WIPEONFORK as memory without contents: keys and the state of
// random number generators are not to be had twice. What is still missing there is not brought to it. The images tell
// what was marked at the dump; what has been marked or unmarked since then no event reports. The smaps of the parent
// tell, read while the child waits for its first page. They may be younger than the fork: where they differ from what
// was known before, the children's own smaps decide. For a child's child only its parent's past is known.
// A child of which that cannot be found out gets nothing.

// mapping is a VMA as smaps has it.
type mapping struct {
	start, end uint64
	wiped      bool
}

// childTimeout is how long a forked process is looked for: it shows in /proc when
// its fork is about to return.
const childTimeout = 20 * time.Millisecond

// wipe takes from a child that is not served yet the contents that it does not get. With an error these are not known.
func (m *memory) wipe() error {
	var now []mapping
	if m.parent != nil {
		err := m.patiently(func() (err error) { now, err = mappings(m.parent.pid); return err })
		switch {
		case m.parent.ended():
			now = nil // somebody else's, perhaps
		case err != nil:
			return fmt.Errorf("see what its parent has marked by MADV_WIPEONFORK: %w", err)
		}
	}
	m.mu.Lock()
	doubts := m.space.wipe(now)
	m.mu.Unlock()
	if len(doubts) == 0 {
		return nil
	}
	var children [][]mapping
	err := m.patiently(func() (err error) { children, err = childMappings(m.parent.pid); return err })
	if err != nil {
		return fmt.Errorf("see what it has marked by MADV_WIPEONFORK: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.space.decide(doubts, children, now)
	return nil
}

// wipe forgets the pieces that are wiped both as was known and by the parent's
// mappings now, and those about which these say nothing. It returns those about which
// they differ.
func (s *space) wipe(now []mapping) (doubts []*piece) {
	for _, p := range slices.Clone(s.live.byAddr) {
		for at := p.start; at < p.end; {
			m, known := lookup(now, at)
			end := min(p.end, m.end)
			switch {
			case known && m.wiped != p.wiped:
				doubts = append(doubts, p.part(at, end))
			case p.wiped:
				s.forget(s.live.take(at, end, nil))
			}
			at = end
		}
	}
	return doubts
}

// decide settles doubts by the children that there are, when they agree, else by the
// parent.
func (s *space) decide(doubts []*piece, children [][]mapping, parent []mapping) {
	for _, p := range doubts {
		for at := p.start; at < p.end; {
			of, _ := lookup(parent, at)
			end, yes, no := min(p.end, of.end), 0, 0
			for _, c := range children {
				m, known := lookup(c, at)
				end = min(end, m.end)
				switch {
				case known && m.wiped:
					yes++
				case known:
					no++
				}
			}
			wiped := of.wiped
			if (yes > 0) != (no > 0) {
				wiped = yes > 0
			}
			if wiped {
				s.forget(s.live.take(at, end, nil))
			}
			at = end
		}
	}
}

// lookup returns the mapping at an address; where there is none, known is false and
// the mapping ends where the next one begins.
func lookup(all []mapping, at uint64) (m mapping, known bool) {
	i := sort.Search(len(all), func(i int) bool { return all[i].end > at })
	switch {
	case i == len(all):
		return mapping{end: ^uint64(0)}, false
	case all[i].start > at:
		return mapping{end: all[i].start}, false
	}
	return all[i], true
}

// childMappings returns those of a process's children.
func childMappings(pid int) (all [][]mapping, err error) {
	for end := time.Now().Add(childTimeout); len(all) == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		tree, err := readTree()
		if err != nil {
			return nil, err
		}
		for child, up := range tree {
			if up != pid {
				continue
			}
			m, err := mappings(child)
			if err != nil {
				return nil, err
			}
			if len(m) > 0 {
				all = append(all, m)
			}
		}
	}
	return all, nil
}
