package oci

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxLinks is how many symbolic links a path may lead over, as for the kernel.
const maxLinks = 40

// overflowUID owns, in a user namespace, the files of the users that it does not have: root of the host among them.
const overflowUID = 65534

// Guarded follows a path to its file as the kernel does, and refuses it where a user other than root, or than the one
// of this process, can change the file, or put another one in its place. It gives the path without symbolic links.
// fs.ErrNotExist where there is no file.
func Guarded(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	owners := ownersHere()
	at, todo, links := "/", strings.Split(path, "/"), 0
	if err := ownedBy(at, owners); err != nil {
		return "", err
	}
	for len(todo) > 0 {
		next := todo[0]
		todo = todo[1:]
		if next == "" || next == "." {
			continue
		}
		if next == ".." {
			at = filepath.Dir(at)
			continue
		}
		next = filepath.Join(at, next)
		if err := ownedBy(next, owners); err != nil {
			return "", err
		}
		target, err := os.Readlink(next)
		if err != nil {
			at = next // no link
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("%s: %w", path, syscall.ELOOP)
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return at, nil
}

// ownersHere are the users whose files this process may heed.
func ownersHere() map[uint32]bool {
	owners := map[uint32]bool{0: true, uint32(os.Geteuid()): true}
	// Containers of users without privileges: their runtime can do only what they can, too.
	if m, err := os.ReadFile("/proc/self/uid_map"); err == nil && !strings.HasSuffix(strings.TrimSpace(string(m)),
		"4294967295") {
		owners[overflowUID] = true
	}
	return owners
}

// ownedBy refuses a file or folder that users other than the owners can change.
func ownedBy(path string, owners map[uint32]bool) error {
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	owner := st.Sys().(*syscall.Stat_t).Uid
	switch {
	case !owners[owner]:
		return fmt.Errorf("%s belongs to user %d: chown root %s", path, owner, path)
	case st.Mode()&fs.ModeSymlink != 0: // nobody can change one
	case st.IsDir() && st.Mode()&fs.ModeSticky != 0: // nobody can put another file in the place of one there
	case st.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("users other than root can change %s: chmod go-w %s", path, path)
	}
	return nil
}

// readAtMost reads a regular file of at most limit bytes. It does not wait for the other end of a pipe.
func readAtMost(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return text, err
}
