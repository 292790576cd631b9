package oci

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// ReferenceFile is the file in an image directory that says where its images are.
const ReferenceFile = "gpucr-fs.json"

// inventory is CRIU's first image. Callers look for it to see whether there is a checkpoint, and CRIU writes into it
// what no other dump has.
const inventory = "inventory.img"

// copied are the images that callers look at.
var copied = []string{inventory, "descriptors.json"}

// maxReference and maxInventory bound what is read of files that come in archives of others. The images are some
// hundred bytes.
const (
	maxReference = 64 << 10
	maxInventory = 1 << 20
)

// Reference says which checkpoint of the store an image directory stands for.
type Reference struct {
	Version    int    `json:"version"`
	Checkpoint string `json:"checkpoint"`       // its name
	Inventory  string `json:"inventory_sha256"` // of the checkpoint's inventory.img, in hexadecimal digits; "": Pending
	Container  string `json:"container,omitempty"`
}

// version is that of the file.
const version = 1

// ErrNoReference: the directory holds no reference, but images perhaps.
var ErrNoReference = errors.New("it holds no reference to a checkpoint")

// Pending tells that the dump was not yet known to be complete when the reference was written.
func (r Reference) Pending() bool { return r.Inventory == "" }

// ParseReference reads a reference that may come from anybody.
func ParseReference(text []byte) (Reference, error) {
	r, err := parse(text)
	if err == nil && r.Pending() {
		err = fmt.Errorf("%s has no SHA-256 of %s", ReferenceFile, inventory)
	}
	return r, err
}

func parse(text []byte) (Reference, error) {
	var r Reference
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%s: %w", ReferenceFile, err)
	}
	sum, err := hex.DecodeString(r.Inventory)
	switch {
	case r.Version != version:
		return r, fmt.Errorf("%s is of version %d; this program knows version %d", ReferenceFile, r.Version, version)
	case r.Checkpoint == "":
		return r, fmt.Errorf("%s names no checkpoint", ReferenceFile)
	case err != nil || !r.Pending() && len(sum) != sha256.Size:
		return r, fmt.Errorf("%s has no SHA-256 of %s", ReferenceFile, inventory)
	}
	return r, nil
}

// ReadReference reads the reference in an image directory; ErrNoReference where there is none.
func ReadReference(dir string) (Reference, error) {
	return readReference(filepath.Join(dir, ReferenceFile), ParseReference)
}

// ReadPending reads what a dump that did not come to its end has left in an image directory; ErrNoReference where there
// is nothing. It may be Pending.
func ReadPending(dir string) (Reference, error) {
	return readReference(filepath.Join(dir, PendingFile), parse)
}

func readReference(file string, parse func([]byte) (Reference, error)) (Reference, error) {
	text, err := readAtMost(file, maxReference)
	if errors.Is(err, fs.ErrNotExist) {
		return Reference{}, ErrNoReference
	}
	if err != nil {
		return Reference{}, err
	}
	r, err := parse(text)
	if err != nil {
		return r, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

func hashOf(inventory []byte) string {
	sum := sha256.Sum256(inventory)
	return hex.EncodeToString(sum[:])
}

// Verify tells whether the images of a checkpoint are those that the reference was made of. A pending one was made
// before them, and has a name that no other checkpoint gets.
func (r Reference) Verify(images string) error {
	if r.Pending() {
		return nil
	}
	inv, err := readAtMost(filepath.Join(images, inventory), maxInventory)
	if err != nil {
		return err
	}
	if hashOf(inv) != r.Inventory {
		return fmt.Errorf("checkpoint %s of this store is another dump than the one that was asked for", r.Checkpoint)
	}
	return nil
}
