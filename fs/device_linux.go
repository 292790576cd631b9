package fs

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// newFuseServer mounts at dir and has go-fuse serve what it opened for that. go-fuse itself would open the device without O_CLOEXEC: a program started meanwhile would
// keep the connection of a killed daemon alive, and every reader of its mount waiting.
func newFuseServer(raw fuse.RawFileSystem, dir string, o *fuse.MountOptions) (*fuse.Server, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/fuse", Err: err}
	}
	if err := mountDevice(fd, dir, o); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	s, err := fuse.NewServer(raw, fmt.Sprintf("/dev/fd/%d", fd), o) // fd is go-fuse's from here on
	if err != nil {
		return nil, errors.Join(err, unmount(dir, true))
	}
	return s, nil
}

// mountDevice mounts the connection fd at dir, with the options of Documentation/filesystems/fuse.rst.
func mountDevice(fd int, dir string, o *fuse.MountOptions) error {
	options := append([]string{
		fmt.Sprintf("fd=%d", fd), fmt.Sprintf("rootmode=%o", unix.S_IFDIR),
		fmt.Sprintf("user_id=%d", os.Geteuid()), fmt.Sprintf("group_id=%d", os.Getegid()), fmt.Sprintf("max_read=%d", o.MaxWrite),
	}, o.Options...)
	if o.AllowOther {
		options = append(options, "allow_other")
	}
	return os.NewSyscallError("mount", unix.Mount(o.FsName, dir, "fuse."+o.Name, unix.MS_NOSUID|unix.MS_NODEV, strings.Join(options, ",")))
}
