package index

import (
	"path/filepath"
	"slices"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// SetAside is something in the folder of the packs that journals and index together cannot account for. It is kept as it is until somebody who knows more mends
// or removes it.
type SetAside struct {
	File   string `json:"file"` // in the store's folder
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
	Text   string `json:"text"` // what is wrong with it
}

// judge holds what was read of the journal of pack n against the mark that the index had set before. Bytes that are no frames, the lack of bytes, and frames that do not end
// at the mark are damage. end is how far the journal goes.
func (s *Store) judge(n uint32, mark, end int64, bad []pack.Damage) {
	a := SetAside{File: filepath.Join(packsName, pack.JournalName(n))}
	switch {
	case len(bad) > 0:
		a.Offset, a.Text = bad[0].Off, "damaged: "+bad[0].Text
		for _, d := range bad {
			a.Bytes += d.Len
		}
	case mark > end:
		a.Offset, a.Bytes, a.Text = end, mark-end, "damaged: the journal has lost its end"
	default:
		same, err := s.packs.EndsFrame(n, mark)
		if err != nil || !same {
			a.Offset, a.Text = mark, "damaged: it is not the journal that was read before"
			break
		}
		s.asideMu.Lock()
		defer s.asideMu.Unlock()
		delete(s.aside, n)
		return
	}
	s.keepAside(n, a)
}

// keepAside notes that the journal of pack n does not tell all of the pack.
func (s *Store) keepAside(n uint32, a SetAside) {
	s.asideMu.Lock()
	defer s.asideMu.Unlock()
	s.aside[n] = a
}

// isAside says whether the journal of pack n is known not to tell all of the pack.
func (s *Store) isAside(n uint32) bool {
	s.asideMu.Lock()
	defer s.asideMu.Unlock()
	_, ok := s.aside[n]
	return ok
}

// SetAside lists what the store keeps without being able to account for it. Damage of older journals is found by Verify and GC, and listed once they have been there.
func (s *Store) SetAside() ([]SetAside, error) {
	var out []SetAside
	s.asideMu.Lock()
	for _, a := range s.aside {
		out = append(out, a)
	}
	s.asideMu.Unlock()
	orphans, err := s.packs.Orphans()
	if err != nil {
		return nil, fault.Classify("list what is set aside", err)
	}
	for _, n := range orphans {
		if s.isAside(n) {
			continue
		}
		size, err := s.packs.Size(n)
		if err != nil {
			return nil, fault.Classify("list what is set aside", err)
		}
		out = append(out, SetAside{File: filepath.Join(packsName, pack.Name(n)), Bytes: size, Text: "its journal is gone, and the index does not know the pack"})
	}
	aside, err := s.packs.AllAside()
	if err != nil {
		return nil, fault.Classify("list what is set aside", err)
	}
	for _, names := range aside {
		for _, name := range names {
			out = append(out, SetAside{File: filepath.Join(packsName, name), Text: "a damaged journal, kept by repair; it may tell of checkpoints that nothing else knows of"})
		}
	}
	slices.SortFunc(out, func(a, b SetAside) int {
		if a.File < b.File {
			return -1
		}
		return 1
	})
	return out, nil
}

// keepTo gives the number of the last pack of which nothing may be given back; 0 if there is none. A journal that was put aside, or is gone with the index that knew it, may
// tell of checkpoints that nothing else knows of: what they use lies in its pack and in those before.
func (s *Store) keepTo() (uint32, error) {
	var last uint32
	aside, err := s.packs.AllAside()
	if err != nil {
		return 0, err
	}
	for n := range aside {
		last = max(last, n)
	}
	orphans, err := s.packs.Orphans()
	if err != nil {
		return 0, err
	}
	for _, n := range orphans {
		mark, err := s.db.Mark(n)
		if err != nil {
			return 0, err
		}
		if mark == 0 {
			last = max(last, n)
		}
	}
	if last == 0 {
		return 0, nil
	}
	to, err := s.movedTo() // what they use may have been stored anew since
	return max(last, to), err
}
