package keys

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"

	"github.com/gpucr/gpucr-fs/index/storage"
)

// openSynced is openBadger, once the disk has the list of tables that a killed process has left: Badger removes the
// tables that are not in it.
func openSynced(o badger.Options) (*badger.DB, error) {
	if err := syncAgain(filepath.Join(o.Dir, "MANIFEST")); err != nil {
		return nil, err
	}
	if err := (storage.Disk{}).SyncDir(o.Dir); err != nil {
		return nil, unsynced(err)
	}
	return openBadger(o)
}

// maxManifest bounds in bytes what syncAgain writes. Badger keeps its list of tables far shorter.
const maxManifest = 64 << 20

// syncAgain writes a file's bytes once more, each where it stands, and syncs it. An earlier sync may have failed: its
// pages are clean then, and another sync would not write them. Without the file nothing is done.
func syncAgain(name string) (err error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b, err := io.ReadAll(io.LimitReader(f, maxManifest))
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(b, 0); err != nil && !storage.IsFull(err) { // some disks need room for that
		return unsynced(err)
	}
	return unsynced(f.Sync())
}

// syncFile syncs a log, unless it has become a table meanwhile, which is on the disk.
func syncFile(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
