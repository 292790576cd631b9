package feed

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/prefetch"
)

// Images are the files of a checkpoint.
type Images interface {
	// FS gives the small files. Directories that incremental dumps build on are below "parent".
	FS() fs.FS
	// Open opens a pages file, named as in FS.
	Open(name string) (File, error)
}

// File is a pages file.
type File interface {
	prefetch.File
	io.Closer
}

// Dir is a plain directory.
type Dir string

// FS follows the parent link.
func (d Dir) FS() fs.FS { return os.DirFS(string(d)) }

// Open opens a file of the directory.
func (d Dir) Open(name string) (File, error) {
	return prefetch.OpenFile(filepath.Join(string(d), name))
}

// Stored are the images of a sealed checkpoint in a store.
type Stored struct {
	Store *index.Store
	// Ref is the checkpoint's ID, name or tag.
	Ref string
}

// at finds the checkpoint that holds a name, by its parents.
func (s Stored) at(name string) (*index.Checkpoint, string, error) {
	c, err := s.Store.Checkpoint(s.Ref)
	for err == nil {
		rest, below := strings.CutPrefix(name, "parent/")
		if !below {
			return c, name, nil
		}
		if c, err = c.Parent(); err == nil && c == nil {
			return nil, "", &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		name = rest
	}
	return nil, "", err
}

// FS gives the checkpoint with its parents below it.
func (s Stored) FS() fs.FS { return storedFS{s} }

type storedFS struct{ s Stored }

func (f storedFS) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	c, rest, err := f.s.at(name)
	if err != nil {
		return nil, err
	}
	return c.FS().Open(rest)
}

// Open opens a file of the checkpoint or of one of its parents.
func (s Stored) Open(name string) (File, error) {
	c, rest, err := s.at(name)
	if err != nil {
		return nil, err
	}
	f, err := c.Open(rest)
	if err != nil {
		return nil, err
	}
	return prefetch.StoreFile{File: f}, nil
}

// open opens the files that a plan names. The function closes them.
func open(images Images, names []string) (files []prefetch.File, done func() error, err error) {
	var opened []File
	done = func() error {
		var errs []error
		for _, f := range opened {
			errs = append(errs, f.Close())
		}
		return errors.Join(errs...)
	}
	for _, name := range names {
		f, err := images.Open(name)
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("open %s: %w", name, err), done())
		}
		opened, files = append(opened, f), append(files, f)
	}
	return files, done, nil
}
