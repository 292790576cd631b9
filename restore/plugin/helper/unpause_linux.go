package helper

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/restore/procfs"
)

// kcmpFile is KCMP_FILE of linux/kcmp.h.
const kcmpFile = 0

// unpauseAll unpauses the processes of a dump that CRIU, killed, has left. The driver
// takes UNPAUSE from the thread that traces the process.
func (d *dump) unpauseAll() error {
	var errs []error
	for _, kfd := range d.paused {
		pid, err := owner(kfd)
		if err == nil {
			err = unpause(pid, kfd)
		}
		// Unpaused already, or gone.
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("queues of a process stay paused: %w", err))
		}
	}
	return errors.Join(errs...)
}

// dyingTime is how long processes that CRIU has killed may take to end.
const dyingTime = 500 * time.Millisecond

// unpauseSurvivors unpauses the processes that CRIU was about to kill, and did not.
func (d *dump) unpauseSurvivors() error {
	for late := time.Now().Add(dyingTime); time.Now().Before(late); time.Sleep(10 * time.Millisecond) {
		lives := func(kfd *os.File) bool { _, err := owner(kfd); return !errors.Is(err, unix.ESRCH) }
		if !slices.ContainsFunc(d.paused, lives) {
			return nil
		}
	}
	return d.unpauseAll()
}

// owner returns the process that has the open file f, too; ESRCH when there is none.
func owner(f *os.File) (int, error) {
	pids, err := procfs.PIDs()
	if err != nil {
		return 0, err
	}
	self := os.Getpid()
	for _, pid := range pids {
		if pid == self {
			continue
		}
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		links, err := os.ReadDir(dir)
		if err != nil && !procfs.Gone(err) && !errors.Is(err, fs.ErrPermission) {
			return 0, err
		}
		for _, l := range links {
			to, err := os.Readlink(filepath.Join(dir, l.Name()))
			if err != nil || !strings.HasSuffix(to, "/kfd") {
				continue
			}
			fd, err := strconv.Atoi(l.Name())
			if err != nil {
				continue
			}
			same, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(self), uintptr(pid), kcmpFile, f.Fd(),
				uintptr(fd), 0)
			if errno == 0 && same == 0 {
				return pid, nil
			}
		}
	}
	return 0, fmt.Errorf("no process has it open: %w", unix.ESRCH)
}

// tracedTime is how long a CRIU that was killed may take to let go of what it
// traces: its connections end before that.
const tracedTime = 10 * time.Second

// seize begins to trace a process as soon as nobody else does.
func seize(pid int) error {
	for late := time.Now().Add(tracedTime); ; time.Sleep(2 * time.Millisecond) {
		_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0)
		switch {
		case errno == 0:
			return nil
		case errno != unix.EPERM || time.Now().After(late):
			return fmt.Errorf("trace process %d: %w", pid, errno)
		}
	}
}

// unpause traces a process for as long as one ioctl takes.
func unpause(pid int, kfd *os.File) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := seize(pid); err != nil {
		return err
	}
	errno := unpauseIoctl(kfd)
	// A process must stand to be let go.
	detach := interruptAndDetach(pid)
	if errno != 0 {
		return fmt.Errorf("UNPAUSE of process %d: %w", pid, errno)
	}
	return detach
}

// busyTime is how long a driver that says EAGAIN is asked again.
const busyTime = 5 * time.Second

func unpauseIoctl(kfd *os.File) unix.Errno {
	for late := time.Now().Add(busyTime); ; time.Sleep(time.Millisecond) {
		args := abi.KFDCRIUArgs{Op: abi.KFDCRIUUnpause}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, kfd.Fd(), uintptr(abi.KFDIocCRIUOp), uintptr(unsafe.Pointer(&args)))
		if errno != unix.EAGAIN && errno != unix.EINTR || time.Now().After(late) {
			return errno
		}
	}
}

func interruptAndDetach(pid int) error {
	if err := unix.PtraceInterrupt(pid); err != nil {
		return fmt.Errorf("let go of process %d: %w", pid, err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err != nil {
		return fmt.Errorf("let go of process %d: %w", pid, err)
	}
	sig := 0
	if status.Stopped() && status.TrapCause() != unix.PTRACE_EVENT_STOP {
		sig = int(status.StopSignal())
	}
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(pid), 0, uintptr(sig), 0,
		0); errno != 0 {
		return fmt.Errorf("let go of process %d: %w", pid, errno)
	}
	return nil
}
