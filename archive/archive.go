// Package archive moves whole checkpoints over the border of a store: in from an image directory or a checkpoint
// archive, out to a directory or a tar stream.
//
// Import streams. Nothing is unpacked beside the store: each member goes through a fixed number of 1 MiB blocks into a
// draft, and the draft is sealed only after the last member, the archive's trailer and its checksums have been seen.
// Any failure aborts the draft, so a name is either a complete checkpoint or nothing.
//
// Everything that is read is taken for hostile. Names are relative, without "..", valid UTF-8; a member's parents are
// real directories, because symbolic links are created last, and a link's target may only climb as far as the root of
// the tree. Hard links, devices and pipes are refused. Counts, total size and the expansion of compressed input are
// bounded (see [ImportOptions]).
//
// An incremental dump holds a link named "parent" to the images it builds on. That link alone may point out of the
// tree: it is turned into a recorded dependency on a checkpoint of this store, and into a link "../NAME" that holds in
// the mount and among exported siblings alike.
//
// Export writes to a temporary name beside the destination, syncs, and renames: the destination is never half a
// checkpoint. Zero runs become holes.
package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/gpucr/gpucr-fs/index"
)

// blockSize is the unit of reading and writing in bytes. Larger blocks gained nothing against the page cache; the
// splitter's largest chunk is as long.
const blockSize = 1 << 20

// Progress tells how far a transfer has come. Total is 0 when it is not known.
type Progress struct {
	Done  int64  `json:"done"`  // bytes
	Total int64  `json:"total"` // bytes
	File  string `json:"file,omitempty"`
}

// ImportOptions of one import. The zero value is usable.
type ImportOptions struct {
	// Tags the new checkpoint gets.
	Tags []string
	// Labels it gets, beside those that its images tell.
	Labels map[string]string
	// Parent names the checkpoint that a "parent" link stands for; by default the one named like the last element of
	// the link's target.
	Parent string
	// MaxFiles bounds the files, directories and links of the source. Default 1,048,576.
	MaxFiles int
	// MaxBytes bounds the sum of file sizes, holes included. Default 16 TiB.
	MaxBytes int64
	// MaxRatio bounds what compressed or sparse archives may expand to, in bytes out for each byte in, once 1 GiB came
	// out. Default 1000.
	MaxRatio int64
	// Progress, if set, is called from one goroutine at a time, not faster than every block.
	Progress func(Progress)
	// Logger is told what was left out. Default: discards.
	Logger *slog.Logger
}

func (o *ImportOptions) setDefaults() {
	if o.MaxFiles == 0 {
		o.MaxFiles = 1 << 20
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 16 << 40
	}
	if o.MaxRatio == 0 {
		o.MaxRatio = 1000
	}
	if o.Progress == nil {
		o.Progress = func(Progress) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate refuses options that cannot be meant.
func (o *ImportOptions) Validate() error {
	if o.MaxFiles < 0 || o.MaxBytes < 0 || o.MaxRatio < 0 {
		return &index.Error{Class: index.Invalid, Op: "import", Err: errors.New("limits must not be negative")}
	}
	return nil
}

// Result says what an import brought in.
type Result struct {
	Checkpoint  index.Info `json:"checkpoint"`
	Directories int        `json:"directories"`
	Symlinks    int        `json:"symlinks"`
	Skipped     []string   `json:"skipped,omitempty"` // sockets, which are never part of a checkpoint
}

// refuse is the error for a source that must not be imported.
func refuse(member, hint, format string, a ...any) error {
	return &index.Error{Op: "import", File: member, Hint: hint, Err: fmt.Errorf(format, a...)}
}

// tree is what an import writes to: an index.Draft, or a fake under test.
type tree interface {
	Mkdir(path string, perm fs.FileMode) error
	Symlink(target, path string) error
	SetAttr(path string, a index.Attr) error
	SetParent(name string) error
	create(path string, perm fs.FileMode) (file, error)
	imagesOf(parent string) (string, error)
}

// file is one open file of a tree.
type file interface {
	WriteAt(p []byte, off int64) (int, error)
	Truncate(size int64) error
	Close() error
}

// draftTree adapts a draft of a store.
type draftTree struct {
	*index.Draft
	store *index.Store
}

func (t draftTree) create(path string, perm fs.FileMode) (file, error) {
	return t.Draft.Create(path, perm)
}

// imagesOf gives the folder of a checkpoint that holds the CRIU images: "." for a plain dump, "checkpoint" or
// "pre-checkpoint" in what podman writes.
func (t draftTree) imagesOf(parent string) (string, error) {
	c, err := t.store.Checkpoint(parent)
	if err != nil {
		return "", err
	}
	for _, dir := range []string{"checkpoint", "pre-checkpoint"} {
		if _, err := c.Stat(dir + "/inventory.img"); err == nil {
			return dir, nil
		}
	}
	return ".", nil
}
