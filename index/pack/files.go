package pack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpucr/gpucr-fs/index/storage"
)

// asideMark is what the name of a journal gets when it is put aside, with a number behind it.
const asideMark = ".set-aside-"

// files is what the folder of a set holds, by number of the pack.
type files struct {
	journals []uint32 // ascending
	packs    []uint32 // ascending
	aside    map[uint32][]string
	highest  uint32 // number that any name has
}

func (s *Set) list() (files, error) {
	f := files{aside: map[uint32][]string{}}
	names, err := s.fs.List(s.dir)
	if err != nil {
		return f, err
	}
	for _, name := range names {
		var n uint32
		if _, err := fmt.Sscanf(name, "%08d.", &n); err != nil {
			continue
		}
		switch {
		case name == JournalName(n):
			f.journals = append(f.journals, n)
		case name == Name(n):
			f.packs = append(f.packs, n)
		case strings.HasPrefix(name, JournalName(n)+asideMark):
			f.aside[n] = append(f.aside[n], name)
		case !strings.HasPrefix(name, Name(n)) && !strings.HasPrefix(name, JournalName(n)):
			continue
		}
		f.highest = max(f.highest, n)
	}
	slices.Sort(f.journals)
	slices.Sort(f.packs)
	return f, nil
}

// Packs gives the numbers of all packs, ascending: those with a journal.
func (s *Set) Packs() ([]uint32, error) {
	f, err := s.list()
	return f.journals, err
}

// Orphans gives the numbers of the packs that hold something and have no journal, ascending. Nothing removes them:
// the index may still know where their slots are, and the journal may come back.
func (s *Set) Orphans() ([]uint32, error) {
	f, err := s.list()
	if err != nil {
		return nil, err
	}
	var out []uint32
	for _, n := range f.packs {
		if slices.Contains(f.journals, n) {
			continue
		}
		if why, err := s.Missing(n); err != nil {
			return nil, err
		} else if why != "" {
			out = append(out, n)
			continue
		}
		if size, err := s.Size(n); err != nil {
			return nil, err
		} else if size > 0 { // an empty one is what a crash leaves of a pack that was being begun
			out = append(out, n)
		}
	}
	return out, nil
}

// SyncJournal makes durable what can be read of the journal of pack n from from to end. The process that wrote
// it may have been killed before the sync. Or the sync may have failed: then the pages are clean, and another sync
// would not write them. So the bytes are written once more, each where it stands. On a read-only file system nothing is
// done.
func (s *Set) SyncJournal(n uint32, from, end int64) (err error) {
	if _, ok := s.fs.(storage.ReadOnly); ok {
		return nil
	}
	j, err := s.fs.Open(s.JournalPath(n), storage.Write)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	buf := make([]byte, min(1<<20, max(0, end-from)))
	for from < end {
		b := buf[:min(int64(len(buf)), end-from)]
		if _, err := j.ReadAt(b, from); err != nil {
			return err
		}
		if b[0] == 0 { // no frame begins so: damage, and a hole in it must not become bytes of the disk
			behind, err := skipHole(j, from, end)
			if err != nil {
				return err
			}
			if behind > from {
				from = behind
				continue
			}
		}
		if _, err := j.WriteAt(b, from); err != nil {
			return err
		}
		from += int64(len(b))
	}
	if err := j.Sync(); err != nil {
		return err
	}
	return s.fs.SyncDir(s.dir)
}

// Exists says whether pack n has a file; one that was being dropped has a journal only.
func (s *Set) Exists(n uint32) bool {
	_, err := s.fs.Stat(s.PackPath(n))
	return !errors.Is(err, os.ErrNotExist)
}

// Missing says why pack n has no file of its own, "" where it has one. What is no file is not opened: to open a pipe
// may never end.
func (s *Set) Missing(n uint32) (why string, err error) {
	st, err := s.fs.Stat(s.PackPath(n))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "the file is gone", nil
	case err == nil && (st.Dir || st.Odd):
		return "it is not a file", nil
	}
	return "", err
}

// Lost gives the packs of which the journal tells and that have no file of their own, and why. One that was being
// dropped is none of them.
func (s *Set) Lost() (map[uint32]string, error) {
	f, err := s.list()
	if err != nil {
		return nil, err
	}
	out := map[uint32]string{}
	for _, n := range f.journals {
		why, err := s.Missing(n)
		if err != nil {
			return nil, err
		}
		if why == "" {
			continue
		}
		live := map[uint32]bool{}
		_, _, err = s.Read(n, 0, func(r Record) error {
			switch {
			case r.Chunk != nil:
				live[r.Chunk.Loc.Page] = true
			case r.Dead != nil:
				delete(live, r.Dead.Loc.Page)
			}
			return nil
		})
		if err != nil && !errors.Is(err, ErrCorrupt) {
			return nil, err
		}
		if len(live) > 0 {
			out[n] = why
		}
	}
	return out, nil
}

// Aside gives the names of journals of pack n that have been put aside.
func (s *Set) Aside(n uint32) ([]string, error) {
	f, err := s.list()
	return f.aside[n], err
}

// AllAside gives the names of all journals that have been put aside, by pack.
func (s *Set) AllAside() (map[uint32][]string, error) {
	f, err := s.list()
	return f.aside, err
}

// PutAside gives the journal of pack n another name, under which later repairs can read it;
// RewriteJournal is to follow. Without a journal it does nothing.
func (s *Set) PutAside(n uint32) error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	names, err := s.Aside(n)
	if err != nil {
		return err
	}
	for i := 1; ; i++ {
		name := fmt.Sprintf("%s%s%d", JournalName(n), asideMark, i)
		if slices.Contains(names, name) {
			continue
		}
		err := s.fs.Rename(s.JournalPath(n), filepath.Join(s.dir, name))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return s.fs.SyncDir(s.dir)
	}
}

// ReadAside is Read for a journal that has been put aside.
func (s *Set) ReadAside(n uint32, name string, fn func(Record) error) (bad []Damage, err error) {
	path := filepath.Join(s.dir, name)
	st, err := s.fs.Stat(path)
	if err != nil {
		return nil, err
	}
	_, bad, err = readJournal(s.fs, path, 0, st.Size, s.opener(n), s.checked(n, fn))
	return bad, err
}

// RemoveAside removes a journal that had been put aside, once the present one tells all that it told.
func (s *Set) RemoveAside(name string) error {
	if err := s.fs.Remove(filepath.Join(s.dir, name)); err != nil {
		return err
	}
	return s.fs.SyncDir(s.dir)
}
