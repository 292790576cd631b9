package preflight

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// From linux/sock_diag.h and linux/unix_diag.h.
const (
	sockDiagByFamily = 20
	showName         = 1
	showPeer         = 4
	attrName         = 0
	attrPeer         = 2
)

// unixSockets asks the kernel for the unix sockets of a process's network namespace: /proc/net/unix does not tell whose
// other ends they are.
func unixSockets(pid int) (map[uint64]unixSocket, error) {
	fd, err := diagSocket(pid)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	// nlmsghdr, then unix_diag_req: family, protocol, pad, states, inode, show, cookie.
	req := make([]byte, 16+24)
	ne := binary.NativeEndian
	ne.PutUint32(req[0:], uint32(len(req)))
	ne.PutUint16(req[4:], sockDiagByFamily)
	ne.PutUint16(req[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	req[16] = unix.AF_UNIX
	ne.PutUint32(req[20:], ^uint32(0))
	ne.PutUint32(req[28:], showName|showPeer)
	if err := unix.Sendto(fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("sendto", err)
	}
	all := map[uint64]unixSocket{}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("recvfrom", err)
		}
		done, err := parseUnixSockets(buf[:n], all)
		if done || err != nil {
			return all, err
		}
	}
}

// parseUnixSockets takes the sockets out of an answer, and tells whether it was the last.
func parseUnixSockets(answer []byte, all map[uint64]unixSocket) (done bool, err error) {
	msgs, err := syscall.ParseNetlinkMessage(answer)
	if err != nil {
		return false, fmt.Errorf("unix sockets: %w", err)
	}
	ne := binary.NativeEndian
	for _, m := range msgs {
		switch m.Header.Type {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			if len(m.Data) < 4 {
				return false, errors.New("unix sockets: a short error")
			}
			return false, fmt.Errorf("unix sockets: %w", syscall.Errno(-int32(ne.Uint32(m.Data))))
		}
		// unix_diag_msg: family, type, state, pad, inode, cookie.
		if len(m.Data) < 16 || m.Data[0] != unix.AF_UNIX {
			continue
		}
		s := unixSocket{dgram: m.Data[1] == unix.SOCK_DGRAM}
		for rest := m.Data[16:]; len(rest) >= 4; {
			size := int(ne.Uint16(rest))
			if size < 4 || size > len(rest) {
				break
			}
			switch value := rest[4:size]; ne.Uint16(rest[2:]) {
			case attrName:
				s.name = strings.ReplaceAll(string(value), "\x00", "@")
			case attrPeer:
				if len(value) >= 4 {
					s.peer = uint64(ne.Uint32(value))
				}
			}
			rest = rest[min((size+3)&^3, len(rest)):]
		}
		all[uint64(ne.Uint32(m.Data[4:]))] = s
	}
	return false, nil
}

// diagSocket makes a socket for questions about sockets in the network namespace of a process.
func diagSocket(pid int) (int, error) {
	make := func() (int, error) {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
		return fd, os.NewSyscallError("socket", err)
	}
	theirs, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return -1, err
	}
	defer theirs.Close()
	runtime.LockOSThread()
	ours, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		runtime.UnlockOSThread()
		return -1, err
	}
	defer ours.Close()
	var a, b unix.Stat_t
	if unix.Fstat(int(theirs.Fd()), &a) == nil && unix.Fstat(int(ours.Fd()), &b) == nil && a.Ino == b.Ino {
		runtime.UnlockOSThread()
		return make()
	}
	if err := unix.Setns(int(theirs.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return -1, os.NewSyscallError("setns", err)
	}
	fd, err := make()
	if back := unix.Setns(int(ours.Fd()), unix.CLONE_NEWNET); back != nil {
		// The thread stays locked, and ends with its goroutine: nothing else runs in another's namespace.
		return fd, errors.Join(err, os.NewSyscallError("setns", back))
	}
	runtime.UnlockOSThread()
	return fd, err
}
