package fs

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// newFuseServer mounts. go-fuse opens the device without O_CLOEXEC: a child started meanwhile, or later, would keep the connection of a killed daemon alive, and every
// reader of its mount waiting. No child is started until the descriptor is marked.
func newFuseServer(raw fuse.RawFileSystem, dir string, o *fuse.MountOptions) (*fuse.Server, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	s, err := fuse.NewServer(raw, dir, o)
	if err != nil {
		return nil, err
	}
	if err := closeDevicesOnExec(); err != nil {
		return nil, errors.Join(err, unmount(dir, true))
	}
	return s, nil
}

// closeDevicesOnExec marks all of this process's descriptors of the FUSE device.
func closeDevicesOnExec() error {
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		return err
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err != nil || to != "/dev/fuse" {
			continue // one that was just closed has no link
		}
		fd, err := strconv.Atoi(filepath.Base(l))
		if err != nil {
			return err
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
			return os.NewSyscallError("fcntl", err)
		}
	}
	return nil
}
