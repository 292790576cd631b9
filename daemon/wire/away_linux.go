package wire

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Away gives the folder that has the sockets and the log of a daemon whose store at dir cannot be written. Its name is
// made of the device and inode of the store's folder, so it is the same for every path to the store, and another one
// for a copy.
func Away(dir string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	base := "/run/gpucr-fs"
	if uid := os.Geteuid(); uid != 0 {
		base = fmt.Sprintf("/run/user/%d/gpucr-fs", uid)
	}
	return filepath.Join(base, fmt.Sprintf("%x-%x", st.Dev, st.Ino)), nil
}

// MakeAway is Away, and makes the folder.
func MakeAway(dir string) (string, error) {
	away, err := Away(dir)
	if err != nil {
		return "", err
	}
	return away, os.MkdirAll(away, 0o700)
}
