package uffd

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Mirror of linux/userfaultfd.h, held to the header by TestABI.
//
//	Go              header
//	eventFault …    UFFD_EVENT_PAGEFAULT …
//	ioctlCopy …     UFFDIO_COPY …
//	argCopy …       struct uffdio_copy …
//	message         struct uffd_msg, packed, 32 bytes
const (
	eventFault  = 0x12
	eventFork   = 0x13
	eventRemap  = 0x14
	eventRemove = 0x15
	eventUnmap  = 0x16

	ioctlWake     = 0x8010aa02
	ioctlCopy     = 0xc028aa03
	ioctlZeropage = 0xc020aa04
	ioctlContinue = 0xc020aa07
	ioctlPoison   = 0xc020aa08 // Linux 6.6
)

type argRange struct{ start, len uint64 }

type argCopy struct {
	dst, src, len, mode uint64
	copied              int64
}

// argFill is struct uffdio_zeropage, uffdio_continue and uffdio_poison, which
// have the same shape.
type argFill struct {
	argRange
	mode uint64
	done int64
}

// message is one record read from a userfaultfd. The fields after event are a
// union: a, b and c are its 64-bit words.
type message struct {
	event   uint8
	_       [7]byte
	a, b, c uint64
}

func (m *message) faultAddr() uint64   { return m.b }
func (m *message) forkFD() int         { return int(uint32(m.a)) }
func (m *message) span() (s, e uint64) { return m.a, m.b }

func (m *message) remap() (from, to, n uint64) { return m.a, m.b, m.c }

const messageSize = int(unsafe.Sizeof(message{}))

// readMessages reads what is pending, without waiting: 0 and EAGAIN when there
// is nothing.
func readMessages(fd int, buf []message) (int, error) {
	b := unsafe.Slice((*byte)(unsafe.Pointer(&buf[0])), len(buf)*messageSize)
	n, err := unix.Read(fd, b)
	if err != nil {
		return 0, err
	}
	return n / messageSize, nil
}

func ioctl(fd int, req uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), req, uintptr(arg))
	return e
}

// uffdCopy copies page-aligned data to dst and wakes the tasks that wait for it. It
// returns how many bytes were copied, which may be fewer than asked together
// with EAGAIN.
func uffdCopy(fd int, dst uint64, data []byte) (int64, unix.Errno) {
	a := argCopy{dst: dst, src: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(data)))), len: uint64(len(data))}
	e := ioctl(fd, ioctlCopy, unsafe.Pointer(&a))
	runtime.KeepAlive(data)
	return max(a.copied, 0), e
}

// uffdZero maps zero pages; it returns like uffdCopy.
func uffdZero(fd int, dst uint64, n int64) (int64, unix.Errno) {
	a := argFill{argRange: argRange{dst, uint64(n)}}
	e := ioctl(fd, ioctlZeropage, unsafe.Pointer(&a))
	return max(a.done, 0), e
}

// uffdPoison makes pages raise SIGBUS when touched; it returns like uffdCopy.
func uffdPoison(fd int, dst uint64, n int64) (int64, unix.Errno) {
	a := argFill{argRange: argRange{dst, uint64(n)}}
	e := ioctl(fd, ioctlPoison, unsafe.Pointer(&a))
	return max(a.done, 0), e
}

// uffdWake lets threads that wait for pages in the range fault again.
func uffdWake(fd int, start, n uint64) unix.Errno {
	a := argRange{start, n}
	return ioctl(fd, ioctlWake, unsafe.Pointer(&a))
}

// uffdProbe asks, without changing anything, whether one registered mapping
// covers the range: EINVAL when it does, ENOENT when not, ESRCH when the
// process is gone, EAGAIN when it cannot be told. It rests on UFFDIO_CONTINUE
// refusing anonymous memory with EINVAL only after it has found such a mapping,
// and on every ioctl that fills memory giving EAGAIN while a fork, mremap,
// munmap or madvise is under way whose event has not been read. TestProbe and
// TestProbeWhileMoving hold the kernel to it.
func uffdProbe(fd int, start, n uint64) unix.Errno {
	a := argFill{argRange: argRange{start, n}}
	return found(fd, ioctl(fd, ioctlContinue, unsafe.Pointer(&a)))
}

// found makes sure of an ENOENT. The kernel looks for an event under way before
// it looks for the mapping: one that begins in between may have taken the
// mapping away. A caller that believed it gone would give up what is about to be
// reported as moved. It cannot end before its report is read, so looking once
// more tells. Preconditions: nobody reads events meanwhile.
func found(fd int, errno unix.Errno) unix.Errno {
	if errno == unix.ENOENT && !quiet(fd) {
		return unix.EAGAIN
	}
	return errno
}

// quiet reports whether no event of the address space is outstanding: neither
// unread nor read by us but not yet noticed by the task. A process that is
// gone is quiet.
func quiet(fd int) bool {
	a := argFill{argRange: argRange{pageSize, pageSize}}
	return ioctl(fd, ioctlContinue, unsafe.Pointer(&a)) != unix.EAGAIN
}

// waitReadable waits until descriptors are readable and tells which. With a
// timeout of more than 0 it gives up after that: then none is.
func waitReadable(timeout time.Duration, fds ...int) ([]bool, error) {
	p := make([]unix.PollFd, len(fds))
	for i, fd := range fds {
		p[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	}
	var limit *unix.Timespec
	if timeout > 0 {
		t := unix.NsecToTimespec(timeout.Nanoseconds())
		limit = &t
	}
	ready := make([]bool, len(fds))
	for {
		_, err := unix.Ppoll(p, limit, nil)
		switch {
		case err == unix.EINTR && limit == nil:
			continue
		case err == unix.EINTR:
			// The runtime's signals end a wait early: a caller with a limit
			// looks again anyway.
			return ready, nil
		case err != nil:
			return ready, err
		}
		for i := range p {
			ready[i] = p[i].Revents != 0
		}
		return ready, nil
	}
}

// eventFD is an eventfd that makes a poll return.
type eventFD struct{ fd int }

func newEventFD() (*eventFD, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make an eventfd: %w", err)
	}
	return &eventFD{fd}, nil
}

func (b *eventFD) set()   { unix.Write(b.fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }
func (b *eventFD) clear() { unix.Read(b.fd, make([]byte, 8)) }
func (b *eventFD) close() { unix.Close(b.fd) }
