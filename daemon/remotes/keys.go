package remotes

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/keyring"
	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/remote/config"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// Keys are those with which a remote store is made or joined.
type Keys struct {
	Ring   *keyring.Ring  // of a new one that is encrypted
	Access keyring.Access // to one that is there
}

// fit says whether a store may join a remote store with this ring: its key has to be known.
func (k Keys) fit(ctx context.Context, address string, there *keyring.Ring) error {
	const op = "join remote store"
	if there == nil {
		if k.Ring == nil {
			return nil
		}
		return &index.Error{Class: index.Invalid, Op: op, File: address,
			Err:  errors.New("it is there already, and not encrypted"),
			Hint: "join it without --encrypt, or choose another prefix"}
	}
	c, err := there.Open(ctx, k.Access)
	if err != nil {
		return &index.Error{Class: index.Locked, Op: op, File: address, Err: err, Hint: keyring.Hint}
	}
	c.Wipe()
	return nil
}

// fileOf gives what the file of a store is to hold, and the ring of the store.
func fileOf(address string, cache int64, c config.Config) (File, *keyring.Ring) {
	ring := c.Ring
	c.Ring, c.Revision, c.Sum = nil, "", ""
	return File{Address: address, Cache: cache, Config: c, Encrypted: ring != nil}, ring
}

// ChangeKeys changes the wrapped keys of the store at dir and, before, those of its remote store, if it has one: what a
// node has can be told to it again. It gives the keys of the store; see [index.ChangeRing], [remote.ChangeRing].
func ChangeKeys(ctx context.Context, dir string, change func(*keyring.Ring) error) (*keyring.Ring, error) {
	return index.ChangeRing(ctx, dir, func(r *keyring.Ring) error {
		before := r.Clone()
		if err := change(r); err != nil {
			return err
		}
		return changeRemote(ctx, dir, before, r)
	})
}

func changeRemote(ctx context.Context, dir string, before, after *keyring.Ring) error {
	const op = "write keys"
	path := filepath.Join(dir, FileName)
	text, err := storage.ReadFile(storage.Disk{}, path, maxFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var f File
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		return &index.Error{Class: index.Corrupt, Op: op, File: path, Err: err}
	}
	b, err := dial(f.Address)
	if err != nil {
		return err
	}
	defer b.Close()
	return remote.ChangeRing(ctx, b, before, after)
}
