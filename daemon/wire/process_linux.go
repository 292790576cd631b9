package wire

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a handle on a process, the daemon's for one, that outlives its pid.
type Process struct{ fd int }

// OpenProcess takes hold of a process by its pid.
func OpenProcess(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return &Process{fd}, nil
}

// Close lets go of it. It may be nil.
func (p *Process) Close() {
	if p != nil {
		unix.Close(p.fd)
	}
}

// Ended tells that the process is known to have ended; of nil it is not.
func (p *Process) Ended() bool {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	return p != nil && p.Wait(now) == nil
}

// Wait returns when the process has ended.
func (p *Process) Wait(ctx context.Context) error {
	for {
		fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int((50 * time.Millisecond).Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("poll", err)
		}
		if n > 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// Descriptor gives a copy of a descriptor of the process.
func (p *Process) Descriptor(n int) (*os.File, error) {
	fd, err := unix.PidfdGetfd(p.fd, n, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_getfd", err)
	}
	return os.NewFile(uintptr(fd), "adopted"), nil
}
