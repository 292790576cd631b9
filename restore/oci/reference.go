package oci

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
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
	Inventory  string `json:"inventory_sha256"` // of the checkpoint's inventory.img, in hexadecimal digits
	Container  string `json:"container,omitempty"`
}

// version is that of the file.
const version = 1

// ErrNoReference: the directory holds no reference, but images perhaps.
var ErrNoReference = errors.New("it holds no reference to a checkpoint")

// ParseReference reads a reference that may come from anybody.
func ParseReference(text []byte) (Reference, error) {
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
	case err != nil || len(sum) != sha256.Size:
		return r, fmt.Errorf("%s has no SHA-256 of %s", ReferenceFile, inventory)
	}
	return r, nil
}

// ReadReference reads the reference in an image directory; ErrNoReference where there is none.
func ReadReference(dir string) (Reference, error) {
	text, err := readAtMost(filepath.Join(dir, ReferenceFile), maxReference)
	if errors.Is(err, fs.ErrNotExist) {
		return Reference{}, ErrNoReference
	}
	if err != nil {
		return Reference{}, err
	}
	return ParseReference(text)
}

// Refer writes into dir what stands for the images: a reference, and the images that callers look at. When it fails
// nothing stays.
func Refer(dir, images, name, container string) error {
	inv, err := readAtMost(filepath.Join(images, inventory), maxInventory)
	if err != nil {
		return fmt.Errorf("the dump is not complete: %w", err)
	}
	sum := sha256.Sum256(inv)
	r := Reference{Version: version, Checkpoint: name, Inventory: hex.EncodeToString(sum[:]), Container: container}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	for _, file := range copied {
		content, rerr := readAtMost(filepath.Join(images, file), maxInventory)
		if errors.Is(rerr, fs.ErrNotExist) {
			continue
		}
		err = rerr
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), content, 0o600)
		}
		if err != nil {
			break
		}
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, ReferenceFile), append(text, '\n'), 0o600)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write what stands for the images: %w", err), Unrefer(dir))
	}
	return nil
}

// Unrefer takes back what Refer has written.
func Unrefer(dir string) (err error) {
	for _, file := range append([]string{ReferenceFile}, copied...) {
		if rerr := os.Remove(filepath.Join(dir, file)); !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// Verify tells whether the images of a checkpoint are those that the reference was made of.
func (r Reference) Verify(images string) error {
	inv, err := readAtMost(filepath.Join(images, inventory), maxInventory)
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(inv); hex.EncodeToString(sum[:]) != r.Inventory {
		return fmt.Errorf("checkpoint %s of this store is another dump than the one that was asked for", r.Checkpoint)
	}
	return nil
}
