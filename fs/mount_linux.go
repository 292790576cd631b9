package fs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

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

// mountPoint gives the absolute path of dir without symlinks, as mountinfo has it. It does not touch what is mounted
// there, which may be dead.
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

// ClearStale detaches what a killed daemon left at dir: mounts of this file system whose server is gone. It does
// nothing to a live mount, to one of another file system, or where nothing is mounted.
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
			return cleared, &index.Error{
				Class: index.InUse,
				Op:    "mount",
				File:  dir,
				Err:   errors.New("a dead mount of another file system is in the way"),
				Hint:  "umount -l " + dir,
			}
		}
		err = unix.Unmount(dir, unix.MNT_DETACH)
		if errors.Is(err, unix.EINVAL) {
			continue // somebody else was faster
		}
		if err != nil {
			return cleared, fmt.Errorf("detach stale mount %s: %w", dir, err)
		}
		cleared = true
	}
}

// Mounted gives the folder of the store that is mounted at dir, and false where dir is no mount point of this file
// system. It does not touch the mount.
func Mounted(dir string) (store string, ok bool, err error) {
	own, ok, err := ownMount(dir)
	return own.source, ok, err
}

// ownMount gives the mount of this file system that is uppermost at dir.
func ownMount(dir string) (mountEntry, bool, error) {
	dir, err := mountPoint(dir)
	if err != nil {
		return mountEntry{}, false, err
	}
	all, err := mounts()
	if err != nil {
		return mountEntry{}, false, err
	}
	top, ok := topMount(all, dir)
	if !ok || top.fstype != fsType {
		return mountEntry{}, false, nil
	}
	return top, true, nil
}

// connection is the FUSE connection of a mount, held by its folder in fusectl (Documentation/filesystems/fuse.rst): one
// that has ended leaves its number to others, and they are not to be aborted in its place.
type connection struct{ control, folder int }

// connectionOf finds the connection of the mount whose device is "major:minor". The mount must not have ended before it
// returns. It uses a mount of fusectl that is attached nowhere.
func connectionOf(dev string) (*connection, error) {
	_, minor, ok := strings.Cut(dev, ":")
	if !ok {
		return nil, fmt.Errorf("%q is no device number", dev)
	}
	ctx, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen fusectl", err)
	}
	defer unix.Close(ctx)
	if err := unix.FsconfigCreate(ctx); err != nil {
		return nil, os.NewSyscallError("fsconfig fusectl", err)
	}
	control, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fsmount fusectl", err)
	}
	folder, err := unix.Openat(control, minor, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		unix.Close(control)
		return nil, os.NewSyscallError("open the connection's folder in fusectl", err)
	}
	return &connection{control, folder}, nil
}

// abort ends the connection: every copy of the mount, in any namespace, answers ENOTCONN from then on.
func (c *connection) abort() error {
	fd, err := unix.Openat(c.folder, "abort", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("open the connection's abort file", err)
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte("1"))
	return os.NewSyscallError("abort the connection", err)
}

func (c *connection) close() {
	unix.Close(c.folder)
	unix.Close(c.control)
}

// setReadahead raises what the kernel reads ahead. MountOptions.MaxReadAhead can only lower it.
func (s *Server) setReadahead(kb int) error {
	dev, err := s.device()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join("/sys/class/bdi", dev, "read_ahead_kb"), []byte(strconv.Itoa(kb)), 0o644)
}

// device gives the mount's device number, "major:minor".
func (s *Server) device() (string, error) {
	if s.handle != nil {
		return deviceOf(s.handle)
	}
	own, ok, err := ownMount(s.dir)
	if err == nil && !ok {
		err = fmt.Errorf("%s is not in mountinfo", s.dir)
	}
	return own.dev, err
}

// Namespace names the mount namespace of this process.
func Namespace() (string, error) { return os.Readlink("/proc/self/ns/mnt") }

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
