package vram

import (
	"io"
	"os"
	"path/filepath"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/prefetch"
)

// Dir is the Source of a plain image directory.
type Dir string

// Open opens an image file of the directory.
func (d Dir) Open(name string) (File, error) {
	return prefetch.OpenFile(filepath.Join(string(d), name))
}

// Checkpoint is the Source of a sealed checkpoint. Packs are read through the
// page cache: the next restore finds them there.
type Checkpoint struct{ *index.Checkpoint }

// Open opens an image file of the checkpoint.
func (c Checkpoint) Open(name string) (File, error) {
	f, err := c.Checkpoint.Open(name)
	if err != nil {
		return nil, err
	}
	return prefetch.StoreFile{File: f}, nil
}

// DirSink makes image files in a directory, which may be a mount.
type DirSink string

// Create makes an image file, or empties one that is there.
func (d DirSink) Create(name string, _ int64) (io.WriteCloser, error) {
	return os.OpenFile(filepath.Join(string(d), name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
}
