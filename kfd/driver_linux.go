package kfd

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// DevicePath is the path of the KFD's device.
const DevicePath = "/dev/kfd"

// ReadDriverVersion asks the KFD at path for its interface version, on a
// descriptor of its own: the KFD answers only the process that opened it.
//
// It mirrors struct kfd_ioctl_get_version_args of linux/kfd_ioctl.h, which
// package abi holds against the header.
func ReadDriverVersion(path string) (DriverVersion, error) {
	f, err := os.Open(path)
	if err != nil {
		return DriverVersion{}, err
	}
	defer f.Close()
	var args abi.KFDGetVersionArgs
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(abi.KFDIocGetVersion), uintptr(unsafe.Pointer(&args)))
	if errno != 0 {
		return DriverVersion{}, fmt.Errorf("%s: %v: %w", path, abi.KFDIocGetVersion, errno)
	}
	return DriverVersion{Major: args.Major, Minor: args.Minor}, nil
}
