package wire

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/restore/procfs"
)

// Process is a handle on a process, the daemon's for one, that outlives its pid.
type Process struct{ fd, pid int }

// OpenProcess takes hold of a process by its pid.
func OpenProcess(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return &Process{fd, pid}, nil
}

// HoldDumped takes hold of the first process of a dump. It is nil where the caller does not tell, and where there is
// none, which CRIU says. Without a hold on it nobody could tell later whether the images are all that is left of it.
func HoldDumped(pid int) (*Process, error) {
	if pid == 0 {
		return nil, nil
	}
	p, err := OpenProcess(pid)
	if err == nil || errors.Is(err, unix.ESRCH) {
		return p, nil
	}
	hint := "the processes go on; dump again later"
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		hint = "the processes go on; raise the daemon's limit of open files (ulimit -n), or dump again later"
	}
	return nil, &index.Error{Class: index.Other, Op: "dump", Hint: hint,
		Err: fmt.Errorf("take hold of process %d: %w", pid, err)}
}

// Close lets go of it. It may be nil.
func (p *Process) Close() {
	if p != nil {
		unix.Close(p.fd)
	}
}

// Fate is what is known of a process.
type Fate int

const (
	Unknown Fate = iota
	Lives        // it runs, or stands still, and nobody has killed it
	Ends         // it has ended, or was killed and gives its memory back, which can take long
)

// dies is how long a process that was just killed may look as if it lived.
const dies = 50 * time.Millisecond

// Fate tells what has become of the process; of nil nothing is known.
func (p *Process) Fate() Fate {
	if p == nil {
		return Unknown
	}
	fate := p.look()
	if fate == Lives {
		time.Sleep(dies)
		fate = p.look()
	}
	return fate
}

// look is Fate of this moment.
func (p *Process) look() Fate {
	const exiting = 0x4 // PF_EXITING of the kernel, in the field flags
	stat, serr := procfs.ReadStat(fmt.Sprintf("/proc/%d/stat", p.pid))
	killed, kerr := procfs.Killed(p.pid)
	// What has the pid is the process if it has not ended by now.
	ended, err := procfs.Readable(p.fd)
	if ended != 0 {
		return Ends
	}
	if errors.Join(err, serr, kerr) != nil || len(stat) < 7 {
		return Unknown
	}
	flags, err := strconv.ParseUint(stat[6], 10, 64)
	switch {
	case killed:
		return Ends
	case err != nil || flags&exiting != 0 || procfs.Ended(stat): // perhaps its first thread alone
		return Unknown
	}
	return Lives
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
