package keys

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/table"
	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/keys/sigbus"
)

// This file is how an index is read that must not be written to.
//
// Badger's read-only mode neither makes nor writes files, but it needs an index that was closed: it fails over the log
// of a memory table that a kill left ("Log truncate required"), fails to give a size to a log file that has none, and
// deletes tables that its manifest does not name, in this mode, too. So a reader who finds the index not at rest opens
// a copy of it elsewhere, which Badger may change.

// ErrReadOnly: the index was opened by OpenReadOnly.
var ErrReadOnly = errors.New("the index is open for reading only")

// AtRest says whether the index at dir was closed, so that OpenReadOnly can open it.
func AtRest(dir string) bool {
	if sound, err := IsSound(dir); err != nil || !sound {
		return false
	}
	manifest, err := os.Stat(filepath.Join(dir, badger.ManifestFilename))
	if err != nil {
		return false
	}
	m, end, err := readManifest(dir, badger.DefaultOptions(dir))
	if err != nil || end != manifest.Size() {
		return false
	}
	named := map[string]bool{}
	for id := range m.Tables {
		named[table.IDToFilename(id)] = true
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".mem":
			return false
		case ".vlog":
			if info, err := e.Info(); err != nil || info.Size() == 0 {
				return false
			}
		case ".sst":
			if !named[e.Name()] {
				return false
			}
		}
	}
	return err == nil
}

// OpenReadOnly opens an index that is AtRest without a change to its folder. Batches of it fail with ErrReadOnly.
func OpenReadOnly(dir string, log *slog.Logger, t Tuning) (*DB, error) {
	d, err := newDB(dir, log, Room{Dir: dir}, t)
	if err != nil {
		return nil, err
	}
	d.readOnly = true
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, err
	}
	if err := mayOpen(len(entries) + spareFiles); err != nil { // a Badger that fails to open leaves goroutines
		return nil, err
	}
	l := badgerLog{log, make(chan string), func() {}}
	o := d.options(l).WithReadOnly(true)
	if err := checkIndex(d.dir, o); err != nil {
		return nil, err
	}
	w, err := sigbus.New("")
	if err != nil {
		return nil, err
	}
	b, err := openBadger(o)
	if err != nil {
		w.Close()
		return nil, err
	}
	d.b, d.log = b, l
	d.watch.Store(w)
	return d, nil
}

// ReadOnly says whether the index was opened by OpenReadOnly.
func (d *DB) ReadOnly() bool { return d.readOnly }

// Current gives the folder of the index that belongs at dir: where an exchange was interrupted, that of the new one.
func Current(dir string) string {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if sound, _ := IsSound(dir + ".new"); sound {
			return dir + ".new"
		}
	}
	return dir
}

// Copy copies the index at from, which nobody writes to, into the new folder to. It takes as much room as Allocated
// says, for Badger's logs are mostly holes.
func Copy(from, to string) error {
	if err := checkFiles(from, (&DB{dir: from, t: Tuning{Memory: defaultMemory}}).options(badgerLog{})); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || e.Name() == "LOCK" {
			continue
		}
		if err := copyFile(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return fmt.Errorf("copy the index: %w", err)
		}
	}
	return nil
}

// copyFile copies a file and leaves out its holes: reading those takes as long as their length, which may be anything.
func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	size, err := in.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	for end := int64(0); end < size; {
		data, err := in.Seek(end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return err
		}
		if end, err = in.Seek(data, unix.SEEK_HOLE); err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(out, data), io.NewSectionReader(in, data, end-data)); err != nil {
			return err
		}
	}
	return out.Truncate(size)
}
