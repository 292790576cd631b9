package index

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/repair"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// A store that is open for reading only changes no byte of its folder, so it may lie on a disk that is mounted
// read-only, full, or somebody else's.
//
//   - Its lock is shared: readers are open beside each other, and keep writers out.
//   - Files of packs, journals and the rest go through storage.ReadOnly, which has no way to write.
//   - An index that was closed, and has all that the journals tell, is read where it lies (keys.OpenReadOnly). Behind a
//     process that was killed it is copied to a folder for temporary files, and what the journals have beyond goes into
//     the copy. Where it is gone, cut short or does not open, one is built there from the journals.
//   - Half frames at the ends of journals stay. What is found damaged is reported, and recorded nowhere.

// ReadOnly says whether the store is open for reading only.
func (s *Store) ReadOnly() bool { return s.o.ReadOnly }

// closers closes one after the other.
type closers []io.Closer

func (c closers) Close() error {
	var errs []error
	for _, one := range c {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

// lockToRead keeps writers away. A store that was never opened has no lock file, and nobody to be kept away but who
// opens it for the first time: then it is empty.
func lockToRead(ctx context.Context, o Options, dir string) (io.Closer, error) {
	lock, err := lockStore(ctx, dir, &o)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return closers{}, nil
	case errors.Is(err, os.ErrPermission):
		return nil, &Error{Op: "open store", Err: err,
			Hint: "reading a store takes the permission to read all its files"}
	}
	return lock, err
}

// openToRead is Open for reading only.
func openToRead(ctx context.Context, dir string, config Config, o Options) (_ *Store, err error) {
	o.Storage = storage.ReadOnly{Storage: o.Storage}
	lock, err := lockToRead(ctx, o, dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	if err := o.unlock(ctx, dir, config); err != nil {
		return nil, err
	}
	packDir := filepath.Join(dir, chunks.PacksFolder)
	if _, err := o.Storage.Stat(packDir); err != nil {
		return nil, &fault.Error{Class: fault.Corrupt, Op: "open store", File: packDir, Err: err,
			Hint: "restore the folder from a backup"}
	}
	dbDir := keys.Current(filepath.Join(dir, chunks.IndexFolder))
	if keys.AtRest(dbDir) {
		if d, err := keys.OpenReadOnly(dbDir, o.Logger, o.keys()); err == nil {
			s, err := openOver(dir, config, o, d, lock)
			if !errors.Is(err, keys.ErrReadOnly) {
				return s, err
			}
			o.Logger.Info("the journals tell more than the index", "store", dir)
		} else {
			o.Logger.Warn("the index does not open", "err", err)
		}
	}
	return openElsewhere(ctx, dir, dbDir, config, o, lock)
}

// openElsewhere opens the store with an index in a folder for temporary files.
func openElsewhere(ctx context.Context, dir, dbDir string, config Config, o Options, lock io.Closer) (*Store, error) {
	const op = "open store"
	sound, err := keys.IsSound(dbDir)
	if err != nil {
		return nil, fault.Classify(op, err)
	}
	room, err := roomForIndex(o.Storage, dir, dbDir, sound)
	if err != nil {
		return nil, fault.Classify(op, err)
	}
	tmp, err := newTempIndex(room)
	if err != nil {
		return nil, err
	}
	t := o.keys()
	t.Synced, t.Wrote = nil, nil // they are told of the store's index
	at := keys.Room{Dir: tmp.Path()}
	fail := func(err error) (*Store, error) {
		err = errors.Join(err, tmp.Close())
		if fault.IsNoSpace(err) {
			return nil, noRoomForIndex(fmt.Sprintf("%s is full", filepath.Dir(tmp.Path())), room)
		}
		return nil, fault.Classify(op, err)
	}
	path := filepath.Join(tmp.Path(), chunks.IndexFolder)
	var d *keys.DB
	if sound {
		if err = keys.Copy(dbDir, path); err == nil {
			d, err = keys.Open(path, o.Logger, at, t)
		}
		if fault.IsNoSpace(err) {
			return fail(err)
		}
		if err != nil {
			o.Logger.Warn("the index does not open", "err", err)
			d = nil
		}
	}
	if d == nil {
		if err := os.RemoveAll(path); err != nil {
			return fail(err)
		}
		if _, err := repair.Build(ctx,
			o.repair(config, repair.Options{Dir: dir, Room: tmp.Path(), Fresh: path})); err != nil {
			return fail(err)
		}
		if d, err = keys.Open(path, o.Logger, at, t); err != nil {
			return fail(err)
		}
	}
	s, err := openOver(dir, config, o, d, closers{tmp, lock})
	if err != nil {
		return fail(err)
	}
	return s, nil
}

// roomForIndex gives the bytes that a copy of the index takes, or one built from the journals, and what Badger writes
// when it opens it.
func roomForIndex(st storage.Storage, dir, dbDir string, sound bool) (int64, error) {
	const forBadger = 64 << 20
	var sum int64
	if sound {
		n, err := keys.Allocated(dbDir)
		if err != nil {
			return 0, err
		}
		sum = n
	}
	packDir := filepath.Join(dir, chunks.PacksFolder)
	names, err := st.List(packDir)
	if err != nil {
		return 0, err
	}
	var journals int64
	for _, name := range names {
		if filepath.Ext(name) != ".journal" {
			continue
		}
		info, err := st.Stat(filepath.Join(packDir, name))
		if err != nil {
			return 0, err
		}
		// A hole tells nothing. File systems that compress make less of ids than that
		journals += min(info.Size, 4*info.Disk)
	}
	// An index holds what the journals tell, in a form that is written twice while tables are merged.
	return max(sum, 2*journals) + forBadger, nil
}
