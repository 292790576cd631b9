package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// PendingFile is the file in an image directory that says, while a container is dumped, which checkpoint of the store
// it becomes. It is still there where the dump was killed, and may have been complete then.
const PendingFile = "gpucr-fs.pending.json"

// room is the space that is taken for each file before the container is touched, in bytes. They are some hundred.
const room = 4096

// Place is an image directory that takes what stands for the images of a dump.
type Place struct {
	dir  string
	ref  Reference
	made []string // files that hold nothing yet
	old  []byte   // of an earlier dump that was killed
}

// Reserve prepares an image directory, before the container is touched, for what stands for the images of checkpoint
// name, and takes the space for it. What stands for another checkpoint there stays until Refer.
func Reserve(dir, name, container string) (*Place, error) {
	p := &Place{dir: dir, ref: Reference{Version: version, Checkpoint: name, Container: container}}
	if err := p.reserve(); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare the image directory: %w", err), p.GiveUp())
	}
	return p, nil
}

func (p *Place) reserve() error {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	for _, file := range slices.Concat(copied, []string{ReferenceFile, PendingFile}) {
		st, err := os.Lstat(filepath.Join(p.dir, file))
		if err == nil && !st.Mode().IsRegular() {
			return fmt.Errorf("%s is no regular file: remove it", filepath.Join(p.dir, file))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil || file == ReferenceFile {
			continue
		}
		p.made = append(p.made, file)
		if err := over(filepath.Join(p.dir, file), make([]byte, room)); err != nil {
			return err
		}
	}
	if !slices.Contains(p.made, PendingFile) {
		old, err := readAtMost(filepath.Join(p.dir, PendingFile), maxReference)
		if err != nil {
			return err
		}
		p.old = old
	}
	text, err := p.ref.text()
	if err != nil {
		return err
	}
	return over(filepath.Join(p.dir, PendingFile), append(text, bytes.Repeat([]byte(" "), room-len(text)%room)...))
}

func (r Reference) text() ([]byte, error) {
	text, err := json.MarshalIndent(r, "", "  ")
	return append(text, '\n'), err
}

// over writes a file in the space that it has. What it holds is never longer than what it held before was, or is.
func over(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Truncate(int64(len(content)))
	}
	return errors.Join(err, f.Close())
}

// Refer writes what stands for the images: the images that callers look at, and a reference. When it fails the
// directory still tells, in PendingFile, which checkpoint it is for.
func (p *Place) Refer(images string) error {
	inv, err := readAtMost(filepath.Join(images, inventory), maxInventory)
	if err != nil {
		return fmt.Errorf("the dump is not complete: %w", err)
	}
	if err := p.refer(images, inv); err != nil {
		return fmt.Errorf("write what stands for the images: %w", err)
	}
	return nil
}

func (p *Place) refer(images string, inv []byte) error {
	for _, file := range copied {
		content, err := readAtMost(filepath.Join(images, file), maxInventory)
		if errors.Is(err, fs.ErrNotExist) {
			err = os.Remove(filepath.Join(p.dir, file)) // one of another dump
		} else if err == nil {
			err = over(filepath.Join(p.dir, file), content)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	p.ref.Inventory = hashOf(inv)
	text, err := p.ref.text()
	if err != nil {
		return err
	}
	pending := filepath.Join(p.dir, PendingFile)
	if err := over(pending, text); err != nil {
		return err
	}
	return os.Rename(pending, filepath.Join(p.dir, ReferenceFile))
}

// GiveUp leaves the directory as it was before Reserve, for a dump that failed.
func (p *Place) GiveUp() (err error) {
	for _, file := range p.made {
		if rerr := os.Remove(filepath.Join(p.dir, file)); !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	if p.old != nil {
		err = errors.Join(err, over(filepath.Join(p.dir, PendingFile), p.old))
	}
	return err
}
