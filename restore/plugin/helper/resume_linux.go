package helper

import (
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// resumeQueues issues the driver's RESUME for a process: the driver takes
// a pid, from any process that has the capability and /dev/kfd open.
func resumeQueues(pid int) error {
	f, err := os.OpenFile("/dev/kfd", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for late := time.Now().Add(busyTime); ; time.Sleep(time.Millisecond) {
		args := abi.KFDCRIUArgs{Op: abi.KFDCRIUResume, PID: uint32(pid)}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(abi.KFDIocCRIUOp), uintptr(unsafe.Pointer(&args)))
		switch {
		case errno == 0:
			return nil
		case errno != unix.EAGAIN && errno != unix.EINTR || time.Now().After(late):
			return fmt.Errorf("RESUME of process %d: %w", pid, errno)
		}
	}
}
