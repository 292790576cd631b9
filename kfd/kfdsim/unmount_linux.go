package kfdsim

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// How long Close waits for the mount to go everywhere, before and after the
// connection is aborted.
const (
	unmountWait = 3 * time.Second
	abortWait   = 20 * time.Second
)

// unmount ends the device files. A mount namespace that another program has
// made meanwhile may hold a copy of the mount, and the connection with it for as
// long as it pleases: the connection is aborted then.
func (s *Sim) unmount() error {
	var st unix.Stat_t
	if err := unix.Stat(s.DevDir(), &st); err != nil {
		return fmt.Errorf("kfdsim: %s: %w", s.DevDir(), err)
	}
	connection, err := connectionOf(unix.Minor(st.Dev))
	if err != nil {
		return fmt.Errorf("kfdsim: %w", err)
	}
	defer connection.Close()
	done := make(chan error, 1)
	go func() {
		err := s.fuse.Unmount()
		if err == nil {
			s.fuse.Wait()
		}
		done <- err
	}()
	select {
	case err = <-done:
	case <-time.After(unmountWait):
		if err := abort(connection); err != nil {
			return fmt.Errorf("kfdsim: %s is still mounted in another mount namespace: %w", s.DevDir(), err)
		}
		select {
		case err = <-done:
		case <-time.After(abortWait):
			return fmt.Errorf("kfdsim: the server of %s does not end", s.DevDir())
		}
	}
	if err != nil {
		return fmt.Errorf("kfdsim: unmount %s: %w", s.DevDir(), err)
	}
	return nil
}

// connectionOf opens the folder that fusectl has for a FUSE connection (Documentation/filesystems/fuse.rst), by its
// device's minor, while it lasts: a connection that has ended leaves its number to others. The mount of fusectl is
// attached nowhere, and goes with the folder.
func connectionOf(minor uint32) (*os.File, error) {
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
	defer unix.Close(control)
	folder, err := unix.Openat(control, fmt.Sprint(minor), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open the connection's folder in fusectl", err)
	}
	return os.NewFile(uintptr(folder), "connection"), nil
}

// abort ends a connection.
func abort(connection *os.File) error {
	fd, err := unix.Openat(int(connection.Fd()), "abort", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("open the connection's abort file", err)
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte("1"))
	return os.NewSyscallError("abort the connection", err)
}
