package index

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/fault"
)

// tempPrefix begins the names of folders that hold the index of a store open for reading only.
const tempPrefix = "gpucr-fs-index-"

// tempIndex is a folder for temporary files. It is locked while its process lives: what a killed one left is removed by
// the next.
type tempIndex struct {
	dir  string
	lock *os.File
}

// newTempIndex makes a folder on a file system with so many bytes free: where temporary files go (TMPDIR), else in
// memory.
func newTempIndex(room int64) (*tempIndex, error) {
	var why []string
	for _, parent := range []string{os.TempDir(), "/dev/shm"} {
		var st unix.Statfs_t
		if err := unix.Statfs(parent, &st); err != nil {
			why = append(why, fmt.Sprintf("%s: %v", parent, err))
			continue
		}
		if free := int64(st.Bavail) * st.Bsize; free < room {
			why = append(why, fmt.Sprintf("%s has %d MiB free", parent, free>>20))
			continue
		}
		sweepTempIndexes(parent)
		t, err := lockedTemp(parent)
		if err == nil {
			return t, nil
		}
		why = append(why, err.Error())
	}
	return nil, noRoomForIndex(strings.Join(why, ", "), room)
}

func noRoomForIndex(why string, room int64) error {
	return &fault.Error{Class: fault.NoSpace, Op: "open store",
		Err:  fmt.Errorf("its index has to be copied to be read, which takes up to %d MiB: %s", room>>20, why),
		Hint: fmt.Sprintf("point TMPDIR to a folder with %d MiB free", room>>20)}
}

// lockedTemp makes a folder and locks it. A sweep may come between the two.
func lockedTemp(parent string) (*tempIndex, error) {
	for range 10 {
		dir, err := os.MkdirTemp(parent, tempPrefix)
		if err != nil {
			return nil, err
		}
		t, err := lockTemp(dir)
		if err == nil {
			return t, nil
		}
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s: others remove what is made there", parent)
}

// lockTemp locks a folder that was made; ErrNotExist or EWOULDBLOCK when somebody removes it.
func lockTemp(dir string) (*tempIndex, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		_, err = os.Lstat(dir)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &tempIndex{dir, f}, nil
}

// Close removes the folder.
func (t *tempIndex) Close() error { return errors.Join(os.RemoveAll(t.dir), t.lock.Close()) }

// sweepTempIndexes removes what killed processes of this user left. It is tried only: others may be at it.
func sweepTempIndexes(parent string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, e := range entries {
		dir := filepath.Join(parent, e.Name())
		var st unix.Stat_t
		if !e.IsDir() || !strings.HasPrefix(e.Name(), tempPrefix) || unix.Lstat(dir, &st) != nil ||
			int(st.Uid) != os.Geteuid() {
			continue
		}
		if t, err := lockTemp(dir); err == nil {
			t.Close()
		}
	}
}
