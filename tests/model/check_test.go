package model

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/gpucr/gpucr-fs/index"
)

// compare holds what the store shows against what it may hold.
func (w *world) compare() error {
	list, err := w.s.Names(context.Background())
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	w.m.mu.Lock()
	m := w.m.clone()
	w.m.mu.Unlock()
	seen := map[string]bool{}
	for _, info := range list {
		if info.State != index.Sealed {
			continue
		}
		seen[info.Name] = true
		if err := w.compareOne(m.names[info.Name], info); err != nil {
			return fmt.Errorf("checkpoint %s: %w", info.Name, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.names)) {
		if !m.names[name].absent && !seen[name] && w.p.Mode != liars {
			return fmt.Errorf("checkpoint %s is lost", name)
		}
	}
	return nil
}

func (w *world) compareOne(e *entry, info index.Info) error {
	switch {
	case e == nil:
		return errors.New("nobody has made it")
	case !e.may() && w.p.Mode != liars:
		return errors.New("it was removed, or never sealed, and is there")
	}
	got, err := w.read(info.Name)
	if err != nil {
		return err
	}
	versions := e.versions
	if w.p.Mode == liars {
		versions = e.ever
	}
	var why error
	for _, v := range versions {
		if why = v.matches(got, w.p.Mode == liars); why == nil {
			break
		}
	}
	if why != nil || w.p.Mode == liars {
		return why
	}
	if tags := strings.Join(info.Tags, ","); !slices.Contains(e.tags, tags) {
		return fmt.Errorf("it bears the tags %q, may bear %q", tags, e.tags)
	}
	profile, err := w.s.Profile(info.Name)
	if err != nil && index.ClassOf(err) != index.NotFound {
		return err
	}
	if !slices.Contains(e.profiles, string(profile)) {
		return fmt.Errorf("its profile is %q, may be %q", profile, e.profiles)
	}
	return nil
}

// read gives the contents of the files of a checkpoint. Where disks lie, a file that can't be read is left out.
func (w *world) read(name string) (map[string][]byte, error) {
	lenient := func(err error) bool { return w.p.Mode == liars && index.ClassOf(err) == index.Corrupt }
	c, err := w.s.Checkpoint(name)
	if err != nil {
		if lenient(err) {
			return nil, nil
		}
		return nil, err
	}
	out := map[string][]byte{}
	for _, e := range c.Entries() {
		if e.Mode&fs.ModeType != 0 {
			continue
		}
		f, err := c.Open(e.Path)
		if err != nil {
			return nil, err
		}
		b := make([]byte, f.Size())
		_, err = f.ReadAt(b, 0)
		err = errors.Join(ignore(err, io.EOF), f.Close())
		if err != nil && lenient(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out[e.Path] = b
	}
	return out, nil
}

func ignore(err, what error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}

// matches tells how the files differ from the version; some may be missing.
func (v *version) matches(got map[string][]byte, missing bool) error {
	for name := range v.files {
		if _, ok := got[name]; !ok && !missing {
			return fmt.Errorf("file %s is missing", name)
		}
	}
	for name, b := range got {
		contents, ok := v.files[name]
		if !ok {
			return fmt.Errorf("nobody wrote file %s", name)
		}
		if contents == nil || slices.ContainsFunc(contents, func(want []byte) bool { return bytes.Equal(b, want) }) {
			continue
		}
		want := contents[len(contents)-1]
		off := 0
		for off < len(b) && off < len(want) && b[off] == want[off] {
			off++
		}
		return fmt.Errorf("file %s has %d bytes, should have %d, and differs from byte %d on",
			name, len(b), len(want), off)
	}
	return nil
}

func (w *world) gc() error {
	_, err := w.s.GC(context.Background(), index.GCOptions{})
	if err != nil {
		return fmt.Errorf("gc: %w", err)
	}
	return nil
}

// verify expects no damage, but for chunks that nobody uses and gc cannot collect.
func (w *world) verify() error {
	res, err := w.s.Verify(context.Background(), index.VerifyOptions{})
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	for _, p := range res.Problems {
		// A damaged chunk that nobody uses is kept while a journal is set aside that may tell of the one who does.
		if w.p.Mode != liars && (p.Checkpoint != "" || len(res.SetAside) == 0) {
			return fmt.Errorf("verify finds %d problems, one of them: %+v", len(res.Problems), p)
		}
	}
	return nil
}
