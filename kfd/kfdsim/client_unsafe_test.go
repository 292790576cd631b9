package kfdsim

import (
	"encoding/binary"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// ioctl issues a request with one of the abi structures, again where a signal came between, as the GPU's user-space
// libraries do: Go's scheduler sends them.
func ioctl(fd int, req abi.Request, args any) syscall.Errno {
	var buf []byte
	if args != nil {
		buf, _ = binary.Append(nil, binary.NativeEndian, args)
	}
	if len(buf) < req.Size() {
		buf = append(buf, make([]byte, req.Size()-len(buf))...)
	}
	errno := syscall.EINTR
	for errno == syscall.EINTR {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(unsafe.Pointer(&buf[0])))
	}
	if errno == 0 && req.Reads() {
		abi.Decode(buf, args)
	}
	return errno
}

// ptr gives the simulator a pointer; the sink keeps the value on the heap, where
// it stays in place.
func ptr[T any](v *T) uint64 {
	ptrSink = v
	return uint64(uintptr(unsafe.Pointer(v)))
}

var ptrSink any

// slicePtr is the address of memory that stays where it is: mapped, or kept in
// a structure.
func slicePtr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// byUserfaultfd has what is missing of memory come by userfaultfd, and so never, until the test ends.
func byUserfaultfd(t *testing.T, mem []byte) {
	t.Helper()
	const api, register, missing = 0xc018aa3f, 0xc020aa00, 1
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|1, 0, 0) // 1: UFFD_USER_MODE_ONLY
	if errno != 0 {
		t.Fatal(errno)
	}
	t.Cleanup(func() { unix.Close(int(fd)) })
	if errno := ioctl(int(fd), abi.Request(api), &struct{ API, Features, Ioctls uint64 }{API: 0xaa}); errno != 0 {
		t.Fatal(errno)
	}
	if errno := ioctl(int(fd), abi.Request(register), &struct{ Start, Len, Mode, Ioctls uint64 }{
		slicePtr(mem), uint64(len(mem)), missing, 0}); errno != 0 {
		t.Fatal(errno)
	}
}
