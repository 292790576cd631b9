package keys

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"golang.org/x/sys/unix"
)

// lacks are errors of a system that has no more of something, or does not allow it. They tell nothing of the index.
var lacks = []unix.Errno{
	unix.ENOSPC, unix.EDQUOT, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EACCES, unix.EPERM, unix.EROFS,
}

// Lacks says whether an index could not be opened because of the system: it may be sound.
func Lacks(err error) bool {
	for _, e := range lacks {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// systemError is an error of the system of which Badger kept the text only.
type systemError struct {
	error
	errno unix.Errno
}

func (e systemError) Unwrap() []error { return []error{e.error, e.errno} }

// ofSystem gives an error of Badger as one that wraps what the system said.
func ofSystem(err error) error {
	if err == nil || errors.Is(err, ErrDamaged) || Lacks(err) {
		return err
	}
	for line := range strings.Lines(err.Error()) {
		for _, e := range lacks {
			if strings.HasSuffix(strings.TrimSpace(line), ": "+e.Error()) {
				return systemError{err, e}
			}
		}
	}
	return err
}

// makeDiscard makes the one file over which Badger ends the process where it cannot make it. An empty one is as good to
// it as none.
func makeDiscard(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, "DISCARD"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// IsUnborn says whether the index at dir was not yet made as far as its manifest, before which nothing is written.
func IsUnborn(dir string) (bool, error) {
	entries, err := os.ReadDir(dir) // Glob would take characters of the path for a pattern
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".mem", ".sst", ".vlog":
			return false, nil
		}
		if e.Name() == badger.ManifestFilename {
			return false, nil
		}
	}
	return true, err
}
