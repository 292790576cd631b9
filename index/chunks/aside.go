package chunks

import (
	"path/filepath"
	"slices"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// SetAside is something in the folder of the packs that journals and index together cannot account for. It is kept
// as it is until somebody who knows more mends or removes it.
type SetAside struct {
	File   string `json:"file"` // in the store's folder
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
	Text   string `json:"text"` // what is wrong with it
}

// Judge holds what was read of the journal of pack n against the mark that the index had set before. Bytes that are
// no frames, the lack of bytes, and frames that do not end at the mark are damage. end is how far the journal goes.
func (s *Store) Judge(n uint32, mark, end int64, bad []pack.Damage) {
	a := SetAside{File: filepath.Join(PacksFolder, pack.JournalName(n))}
	switch {
	case len(bad) > 0:
		a.Offset, a.Text = bad[0].Off, "damaged: "+bad[0].Text
		for _, d := range bad {
			a.Bytes += d.Len
		}
	case mark > end:
		a.Offset, a.Bytes, a.Text = end, mark-end, "damaged: the journal has lost its end"
	default:
		same, err := s.Packs.EndsFrame(n, mark)
		if err != nil || !same {
			a.Offset, a.Text = mark, "damaged: it is not the journal that was read before"
			break
		}
		s.asideMu.Lock()
		defer s.asideMu.Unlock()
		delete(s.aside, n)
		return
	}
	s.KeepAside(n, a)
}

// KeepAside notes that the journal of pack n does not tell all of the pack.
func (s *Store) KeepAside(n uint32, a SetAside) {
	s.asideMu.Lock()
	defer s.asideMu.Unlock()
	s.aside[n] = a
}

// IsAside says whether the journal of pack n is known not to tell all of the pack.
func (s *Store) IsAside(n uint32) bool {
	s.asideMu.Lock()
	defer s.asideMu.Unlock()
	_, ok := s.aside[n]
	return ok
}

// SetAside lists what the store keeps without being able to account for it. Damage of older journals is found by
// Verify and GC, and listed once they have been there.
func (s *Store) SetAside() ([]SetAside, error) {
	var out []SetAside
	s.asideMu.Lock()
	for _, a := range s.aside {
		out = append(out, a)
	}
	s.asideMu.Unlock()
	orphans, err := s.Packs.Orphans()
	if err != nil {
		return nil, fault.Classify("list what is set aside", err)
	}
	for _, n := range orphans {
		if s.IsAside(n) {
			continue
		}
		size, err := s.Packs.Size(n)
		if err != nil {
			return nil, fault.Classify("list what is set aside", err)
		}
		out = append(out, SetAside{File: filepath.Join(PacksFolder, pack.Name(n)), Bytes: size, Text: "its journal is gone, and the index does not know the pack"})
	}
	lost, err := s.Packs.Lost()
	if err != nil {
		return nil, fault.Classify("list what is set aside", err)
	}
	for n, why := range lost {
		out = append(out, SetAside{File: filepath.Join(PacksFolder, pack.Name(n)), Text: "damaged: " + why})
	}
	aside, err := s.Packs.AllAside()
	if err != nil {
		return nil, fault.Classify("list what is set aside", err)
	}
	for _, names := range aside {
		for _, name := range names {
			out = append(out, SetAside{File: filepath.Join(PacksFolder, name), Text: "a damaged journal, kept by repair; it may tell of checkpoints that nothing else knows of"})
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
