// Package lastread reads from files and sockets whose deadline may be over. A read of [os] or [net] fails at once then,
// even if data has come. A reader that waits for the last words of a process that has ended would lose them on a busy
// machine, if it comes to read only after the deadline. Reads of this package fail after the deadline only where
// nothing has come. So a deadline does not stop the reading from a sender that goes on.
package lastread

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// Do waits as raw.Read of [syscall.RawConn] does until read, which must not wait by itself, says that it has read
// something. After the deadline read is called once more. The error is [os.ErrDeadlineExceeded] if that reads nothing.
func Do(c syscall.Conn, read func(fd uintptr) (done bool)) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	err = raw.Read(read)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	done := false
	if cerr := raw.Control(func(fd uintptr) { done = read(fd) }); cerr != nil {
		return cerr
	}
	if done {
		return nil
	}
	return err
}

// From reads from a file or socket of this kind.
type From struct{ C syscall.Conn }

// Read is as in [io.Reader].
func (f From) Read(p []byte) (n int, err error) {
	var errno error
	err = Do(f.C, func(fd uintptr) bool {
		n, errno = syscall.Read(int(fd), p)
		for errno == syscall.EINTR {
			n, errno = syscall.Read(int(fd), p)
		}
		return errno != syscall.EAGAIN
	})
	switch {
	case err != nil:
		return 0, err
	case errno != nil:
		return 0, os.NewSyscallError("read", errno)
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}
