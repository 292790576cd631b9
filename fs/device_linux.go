package fs

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// newFuseServer mounts at dir, or nowhere where dir is "", and has go-fuse serve what it opened for that. go-fuse
// itself would open the device without O_CLOEXEC: a program started meanwhile would keep the connection of a killed
// daemon alive, and every reader of its mount waiting. The file is the root of what was mounted nowhere.
func newFuseServer(raw fuse.RawFileSystem, dir string, o *fuse.MountOptions) (*fuse.Server, *os.File, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: "/dev/fuse", Err: err}
	}
	var root *os.File
	undo := func() error { return unmount(dir, true) }
	if dir == "" {
		root, err = mountDetached(fd, o)
		undo = root.Close
	} else {
		err = mountDevice(fd, dir, o)
	}
	if err != nil {
		return nil, nil, errors.Join(err, unix.Close(fd))
	}
	s, err := fuse.NewServer(raw, fmt.Sprintf("/dev/fd/%d", fd), o) // fd is go-fuse's from here on
	if err != nil {
		return nil, nil, errors.Join(err, undo())
	}
	return s, root, nil
}

// deviceOptions are those of Documentation/filesystems/fuse.rst, as NAME=VALUE or NAME.
func deviceOptions(fd int, o *fuse.MountOptions) []string {
	options := append([]string{
		fmt.Sprintf("fd=%d", fd), fmt.Sprintf("rootmode=%o", unix.S_IFDIR),
		fmt.Sprintf(
			"user_id=%d",
			os.Geteuid(),
		), fmt.Sprintf("group_id=%d", os.Getegid()), fmt.Sprintf("max_read=%d", o.MaxWrite),
	}, o.Options...)
	if o.AllowOther {
		options = append(options, "allow_other")
	}
	return options
}

// mountDevice mounts the connection fd at dir.
func mountDevice(fd int, dir string, o *fuse.MountOptions) error {
	return os.NewSyscallError(
		"mount",
		unix.Mount(
			o.FsName, dir, "fuse."+o.Name, unix.MS_NOSUID|unix.MS_NODEV, strings.Join(deviceOptions(fd, o), ","),
		),
	)
}

// mountDetached makes a mount of the connection fd that no mount namespace has, and gives its root, which is good for
// openat(2) and to be reopened, not to be read itself (O_PATH). The mount goes with its last user.
func mountDetached(fd int, o *fuse.MountOptions) (*os.File, error) {
	ctx, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen fuse", err)
	}
	defer unix.Close(ctx)
	for _, opt := range append(deviceOptions(fd, o), "source="+o.FsName, "subtype="+o.Name) {
		name, value, has := strings.Cut(opt, "=")
		if has {
			err = unix.FsconfigSetString(ctx, name, value)
		} else {
			err = unix.FsconfigSetFlag(ctx, name)
		}
		if err != nil {
			return nil, os.NewSyscallError("fsconfig fuse "+name, err)
		}
	}
	if err := unix.FsconfigCreate(ctx); err != nil {
		return nil, os.NewSyscallError("fsconfig fuse", err)
	}
	root, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return nil, os.NewSyscallError("fsmount fuse", err)
	}
	return os.NewFile(uintptr(root), o.FsName), nil
}

// deviceOf gives the device number of a mount by its root, "major:minor", without a question to the server of the
// mount.
func deviceOf(root *os.File) (string, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(root.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &st); err != nil {
		return "", os.NewSyscallError("statx", err)
	}
	return fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor), nil
}
