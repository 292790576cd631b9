package park

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Possible tells why a process could not make its rings anew on this machine. It tries.
func (n Note) Possible() error {
	for _, r := range n.Rings {
		p := params{CQEntries: r.Params.CQEntries, Flags: r.Params.Flags}
		fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(r.Params.SQEntries), uintptr(unsafe.Pointer(&p)),
			0)
		switch {
		case errno == unix.EPERM || errno == unix.ENOSYS:
			text, err := os.ReadFile("/proc/sys/kernel/io_uring_disabled")
			if err != nil {
				return fmt.Errorf("process %d needs io_uring, which this kernel does not have", n.PID)
			}
			return fmt.Errorf("process %d needs io_uring, which is forbidden here "+
				"(kernel.io_uring_disabled=%s, or a seccomp profile)", n.PID, strings.TrimSpace(string(text)))
		case errno != 0:
			return fmt.Errorf("process %d needs an io_uring ring of %d entries: %w", n.PID, r.Params.SQEntries, errno)
		}
		if err := unix.Close(int(fd)); err != nil {
			return err
		}
		if p.SQ != r.Params.SQ || p.CQ != r.Params.CQ {
			return fmt.Errorf("process %d: %w", n.PID, errLayout)
		}
	}
	return nil
}

var errLayout = errors.New(
	"this kernel lays out io_uring rings otherwise than the one of the dump; restore it on one of that version")
