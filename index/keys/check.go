package keys

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/table"
)

// checkIndex looks for what Badger must not meet.
func checkIndex(dir string, o badger.Options) error {
	if err := checkFiles(dir, o); err != nil {
		return err // tables of any length are not opened
	}
	return checkTables(dir, o)
}

// checkTables opens every table of the manifest once where a panic can be caught: Badger opens them in goroutines of
// its own, and panics over a damaged footer. A table that the manifest does not name was being written when its process
// was killed; Badger removes it.
func checkTables(dir string, o badger.Options) error {
	m, _, err := readManifest(dir, o)
	if err != nil {
		return err
	}
	var buf []byte
	for id := range m.Tables {
		if buf, err = checkTable(dir, id, buf); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// maxFile is the number of the last log that Badger counts to. It ends the process where there is a later one.
const maxFile = 1 << 31

// maxIndexFile bounds a file of the index in bytes, unless Badger's options make its kind larger.
const maxIndexFile = 64 << 20

// checkFiles looks for files that Badger does not make: it maps and reads files whole, whatever their size, and ends
// the process over what is no file at all.
func checkFiles(dir string, o badger.Options) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	larger := map[string]int64{
		".vlog": 2 * o.ValueLogFileSize, ".mem": 2 * o.MemTableSize,
		".sst": o.BaseTableSize << o.MaxLevels, // it doubles from level to level
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return err
		}
		number, _ := strconv.ParseUint(strings.TrimSuffix(e.Name(), ".vlog"), 10, 64)
		switch {
		case !info.Mode().IsRegular():
			return fmt.Errorf("%w: %s is no file", ErrDamaged, e.Name())
		case info.Size() > max(larger[filepath.Ext(e.Name())], maxIndexFile)+1<<20:
			return fmt.Errorf("%w: %s has %d bytes, more than any that was written here", ErrDamaged, e.Name(),
				info.Size())
		case number > maxFile:
			return fmt.Errorf("%w: %s has a number that none comes to", ErrDamaged, e.Name())
		}
	}
	return err
}

// readManifest gives the tables that Badger counts as its own, none where there is no index yet, and where the
// manifest's last whole entry ends. A missing table is for Badger to complain of.
func readManifest(dir string, o badger.Options) (m badger.Manifest, end int64, err error) {
	f, err := os.Open(filepath.Join(dir, badger.ManifestFilename))
	if errors.Is(err, os.ErrNotExist) {
		return badger.Manifest{}, 0, nil
	}
	if err != nil {
		return badger.Manifest{}, 0, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return badger.Manifest{}, 0, err
	} else if info.Size() > maxIndexFile {
		return badger.Manifest{}, 0, fmt.Errorf("%w: %s has %d bytes", ErrDamaged, badger.ManifestFilename, info.Size())
	}
	defer damageOfPanic(&err)
	return badger.ReplayManifestFile(f, o.ExternalMagicVersion, o)
}

// checkTable reads a table and compares its checksums. It does not map the file: Badger may cut it meanwhile, and a
// read that the disk refuses is an error here, not a signal. The next call may be given the returned buffer.
func checkTable(dir string, id uint64, buf []byte) (_ []byte, err error) {
	name := table.IDToFilename(id)
	defer func() {
		if err != nil {
			err = fmt.Errorf("table %s: %w", name, err)
		}
	}()
	defer damageOfPanic(&err)
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return buf, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return buf, err
	}
	buf = slices.Grow(buf[:0], int(info.Size()))[:info.Size()]
	if _, err := io.ReadFull(f, buf); err != nil {
		return buf, err
	}
	t, err := table.OpenInMemoryTable(buf, id, &table.Options{ChkMode: options.OnTableAndBlockRead})
	if err != nil {
		return buf, err
	}
	return buf, t.VerifyChecksum()
}
