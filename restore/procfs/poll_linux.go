package procfs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Readable gives what poll(2) says of reading from a descriptor now: 0 if a read would wait, else POLLIN, or another
// bit for one that is broken. One of a process (pidfd_open(2)) can be read when the process has ended.
//
// Even a poll that waits for nothing fails with EINTR where nothing is ready and a signal has come (do_poll in
// fs/select.c of Linux). Go's runtime sends itself signals (SIGURG) at any time. The poll is made again then.
func Readable(fd int) (events int16, err error) {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return fds[0].Revents, os.NewSyscallError("poll", err)
		}
	}
}
