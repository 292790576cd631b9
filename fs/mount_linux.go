package fs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index"
)

func mounts() ([]mountEntry, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseMountinfo(f)
}

// mountPoint gives the absolute path of dir without symlinks, as mountinfo has it. It does not touch what is mounted there, which may be dead.
func mountPoint(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for range 40 {
		parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
		if err != nil {
			return "", err
		}
		dir = filepath.Join(parent, filepath.Base(dir))
		to, err := os.Readlink(dir)
		if err != nil {
			return dir, nil
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(parent, to)
		}
		dir = filepath.Clean(to)
	}
	return "", unix.ELOOP
}

// ClearStale detaches what a killed daemon left at dir: mounts of this file system whose server is gone. It does nothing to a live mount, to one of
// another file system, or where nothing is mounted.
func ClearStale(dir string) (cleared bool, err error) {
	if dir, err = mountPoint(dir); err != nil {
		return false, err
	}
	for {
		_, err := os.Stat(dir)
		if !errors.Is(err, unix.ENOTCONN) {
			return cleared, nil
		}
		all, err := mounts()
		if err != nil {
			return cleared, err
		}
		top, ok := topMount(all, dir)
		if !ok || top.fstype != fsType {
			return cleared, &index.Error{Class: index.InUse, Op: "mount", File: dir, Err: errors.New("a dead mount of another file system is in the way"),
				Hint: "umount -l " + dir}
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return cleared, fmt.Errorf("detach stale mount %s: %w", dir, err)
		}
		cleared = true
	}
}

// Mounted gives the folder of the store that is mounted at dir, and false where dir is no mount point of this file system. It does not touch the mount.
func Mounted(dir string) (store string, ok bool, err error) {
	if dir, err = mountPoint(dir); err != nil {
		return "", false, err
	}
	all, err := mounts()
	if err != nil {
		return "", false, err
	}
	top, ok := topMount(all, dir)
	if !ok || top.fstype != fsType {
		return "", false, nil
	}
	return top.source, true, nil
}

// setReadahead raises what the kernel reads ahead for the mount at dir. MountOptions.MaxReadAhead can only lower it.
func setReadahead(dir string, kb int) error {
	all, err := mounts()
	if err != nil {
		return err
	}
	top, ok := topMount(all, dir)
	if !ok {
		return fmt.Errorf("%s is not in mountinfo", dir)
	}
	return os.WriteFile(filepath.Join("/sys/class/bdi", top.dev, "read_ahead_kb"), []byte(strconv.Itoa(kb)), 0o644)
}

// unmount takes the mount at dir away; detached, when force is set: its users then get ENOTCONN.
func unmount(dir string, force bool) error {
	flags := 0
	if force {
		flags = unix.MNT_FORCE | unix.MNT_DETACH
	}
	err := unix.Unmount(dir, flags)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBUSY):
		return &index.Error{Class: index.InUse, Op: "unmount", File: dir, Err: errors.New("mount point is busy"),
			Hint: "end the programs that have files open or their working directory there (fuser -m " + dir + ")"}
	default:
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
}
