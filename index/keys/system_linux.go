package keys

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"golang.org/x/sys/unix"
)

var (
	// scarce are errors of a system that has no more descriptors or memory. That passes, and nothing was written.
	scarce = []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN}
	// lacks are errors of a system that has no more of something, or does not allow it. They tell nothing of the index.
	lacks = slices.Concat(scarce, []unix.Errno{unix.ENOSPC, unix.EDQUOT, unix.EACCES, unix.EPERM, unix.EROFS})
)

// errUnsynced: the disk could not take what a killed process had left unwritten of an index. The kernel reports that
// once.
var errUnsynced = errors.New("the disk could not write the index; try again")

// unsynced marks the error of a write or a sync as one that tells nothing of the index.
func unsynced(err error) error {
	if errors.Is(err, unix.EIO) {
		return fmt.Errorf("%w: %w", errUnsynced, err)
	}
	return err
}

// Lacks says whether an index could not be opened because of the system: it may be sound.
func Lacks(err error) bool { return isAny(err, lacks) || errors.Is(err, errUnsynced) }

// starved says whether err is for want of descriptors or memory.
func starved(err error) bool { return isAny(err, scarce) }

func isAny(err error, of []unix.Errno) bool {
	return slices.ContainsFunc(of, func(e unix.Errno) bool { return errors.Is(err, e) })
}

// systemError is an error of the system of which Badger kept the text only.
type systemError struct {
	error
	errno unix.Errno
}

func (e systemError) Unwrap() []error { return []error{e.error, e.errno} }

// tellsOfScarcity says whether a message of Badger's has the text of such an error.
func tellsOfScarcity(text string) bool {
	return slices.ContainsFunc(scarce, func(e unix.Errno) bool { return strings.Contains(text, ": "+e.Error()) })
}

// ofSystem gives an error of Badger as one that wraps what the system said.
func ofSystem(err error) error {
	if err == nil || errors.Is(err, ErrDamaged) || Lacks(err) {
		return err
	}
	for line := range strings.Lines(err.Error()) {
		for _, e := range lacks {
			if strings.HasSuffix(strings.TrimSuffix(strings.TrimSpace(line), ", retrying"), ": "+e.Error()) {
				return systemError{err, e}
			}
		}
	}
	return err
}

// spareFiles is how many files a write may have Badger open, compactions included.
const spareFiles = 8

// mayOpen fails unless this process can open n more files. Where Badger can't, it may end the process, or be of no use
// until it is opened again: so it is asked before.
func mayOpen(n int) error {
	for range n {
		fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("the index has to open up to %d files; raise the limit of open files (ulimit -n), or "+
				"try again later: %w", n, err)
		}
		defer unix.Close(fd)
	}
	return nil
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
