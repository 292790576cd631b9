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
	done := make(chan error, 1)
	go func() {
		err := s.fuse.Unmount()
		if err == nil {
			s.fuse.Wait()
		}
		done <- err
	}()
	var err error
	select {
	case err = <-done:
	case <-time.After(unmountWait):
		if err := abortConnection(unix.Minor(st.Dev)); err != nil {
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

// abortConnection ends a FUSE connection by its device's minor, through fusectl
// (Documentation/filesystems/fuse.rst) in a mount that is attached nowhere.
func abortConnection(minor uint32) error {
	ctx, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("fsopen fusectl", err)
	}
	defer unix.Close(ctx)
	if err := unix.FsconfigCreate(ctx); err != nil {
		return os.NewSyscallError("fsconfig fusectl", err)
	}
	control, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("fsmount fusectl", err)
	}
	defer unix.Close(control)
	fd, err := unix.Openat(control, fmt.Sprintf("%d/abort", minor), unix.O_WRONLY|unix.O_CLOEXEC, 0)
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
