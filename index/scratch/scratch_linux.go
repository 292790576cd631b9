// Package scratch makes folders for temporary files that last as long as their process. Each is locked while the
// process lives. A process that is killed leaves its folder, and the next one that makes a folder of that kind removes
// it.
package scratch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Dir is such a folder.
type Dir struct {
	path string
	lock *os.File
}

// Make makes a folder in parent whose name begins with prefix, and removes those with that prefix which killed
// processes of this user left there. Nothing else may make folders with that prefix.
func Make(parent, prefix string) (*Dir, error) {
	sweep(parent, prefix)
	// A sweep of another process may come between the making and the lock.
	for range 10 {
		path, err := os.MkdirTemp(parent, prefix)
		if err != nil {
			return nil, err
		}
		d, err := lock(path)
		if err == nil {
			return d, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s: others remove what is made there", parent)
}

// Path is where the folder is.
func (d *Dir) Path() string { return d.path }

// Close removes the folder with all that is in it. What is mounted in it stays, and is an error.
func (d *Dir) Close() error { return errors.Join(remove(d.path), d.lock.Close()) }

// lock locks a folder that was made; ErrNotExist or EWOULDBLOCK when somebody removes it.
func lock(path string) (*Dir, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		_, err = os.Lstat(path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &Dir{path, f}, nil
}

// remove is os.RemoveAll, but does not go into what a killed program has left mounted: cgroups could be removed so.
func remove(path string) error {
	var top unix.Stat_t
	if err := unix.Lstat(path, &top); err != nil {
		return ignoreGone(&fs.PathError{Op: "lstat", Path: path, Err: err})
	}
	err := filepath.WalkDir(path, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return ignoreGone(err)
		}
		var st unix.Stat_t
		if unix.Lstat(p, &st) == nil && st.Dev != top.Dev {
			return fmt.Errorf("%s: something is mounted there", p)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return os.RemoveAll(path)
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// sweep is tried only: others may be at it.
func sweep(parent, prefix string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, e := range entries {
		path := filepath.Join(parent, e.Name())
		var st unix.Stat_t
		if !e.IsDir() || !strings.HasPrefix(e.Name(), prefix) || unix.Lstat(path, &st) != nil ||
			int(st.Uid) != os.Geteuid() {
			continue
		}
		if d, err := lock(path); err == nil {
			d.Close()
		}
	}
}
