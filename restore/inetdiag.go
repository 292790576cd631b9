package restore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// From linux/sock_diag.h and linux/inet_diag.h.
const (
	diagByFamily    = 20 // SOCK_DIAG_BY_FAMILY
	diagDestroy     = 21 // SOCK_DESTROY
	diagRequestSize = 56 // of struct inet_diag_req_v2
	diagMessageSize = 72 // of struct inet_diag_msg
	diagIDSize      = 48 // of struct inet_diag_sockid
)

// tcpSocket is a TCP socket as the kernel tells of it.
type tcpSocket struct {
	family, state byte
	at            netip.AddrPort // its own address, one of IPv4 mapped to IPv6 as IPv4
	inode         uint64         // 0 where no process has it any more
	id            [diagIDSize]byte
}

// tcpStates are the kernel's numbers of states, from net/tcp_states.h, with the names that ss(8) gives them.
var tcpStates = map[byte]string{1: "ESTAB", 2: "SYN-SENT", 3: "SYN-RECV", 4: "FIN-WAIT-1", 5: "FIN-WAIT-2",
	tcpTimeWait: "TIME-WAIT", 7: "CLOSE", 8: "CLOSE-WAIT", 9: "LAST-ACK", tcpListens: "LISTEN", 11: "CLOSING",
	12: "SYN-RECV", 13: "bound"}

const (
	tcpTimeWait = 6
	tcpListens  = 10
)

// sockDiag asks for the TCP sockets of a network namespace, and ends some (sock_diag(7)).
type sockDiag struct{ fd int }

// openSockDiag makes one for the network namespace of the calling thread.
func openSockDiag() (*sockDiag, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// The kernel answers at once. Without a limit a lost answer would be waited for without end.
	t := unix.NsecToTimeval((10 * time.Second).Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &t); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("setsockopt", err)
	}
	return &sockDiag{fd}, nil
}

func (d *sockDiag) close() { unix.Close(d.fd) }

// diagRequest makes a message for the kernel: a header and an inet_diag_req_v2.
func diagRequest(kind, flags uint16, family byte, id []byte) []byte {
	b := make([]byte, unix.SizeofNlMsghdr+diagRequestSize)
	ne := binary.NativeEndian
	ne.PutUint32(b[0:], uint32(len(b)))
	ne.PutUint16(b[4:], kind)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST|flags)
	r := b[unix.SizeofNlMsghdr:]
	r[0], r[1] = family, unix.IPPROTO_TCP
	ne.PutUint32(r[4:], ^uint32(0)) // in every state
	copy(r[8:], id)
	return b
}

// sockets gives the TCP sockets of the local port, of IPv4 and IPv6.
func (d *sockDiag) sockets(port uint16) (all []tcpSocket, err error) {
	id := binary.BigEndian.AppendUint16(nil, port)
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		err := d.ask(diagRequest(diagByFamily, unix.NLM_F_DUMP, family, id), func(m []byte) {
			if s, ok := parseTCPSocket(m); ok && s.at.Port() == port {
				all = append(all, s)
			}
		})
		if err != nil && !(family == unix.AF_INET6 && errors.Is(err, unix.ENOENT)) { // a kernel without IPv6
			return nil, fmt.Errorf("ask for the TCP sockets of port %d: %w", port, err)
		}
	}
	return all, nil
}

// destroy ends a socket, which its cookie identifies: another with the same addresses stays. Where it is gone already,
// there is no error.
func (d *sockDiag) destroy(s tcpSocket) error {
	err := d.ask(diagRequest(diagDestroy, unix.NLM_F_ACK, s.family, s.id[:]), func([]byte) {})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) {
		return nil
	}
	return err
}

// ask sends a request and calls f with each message of the answer.
func (d *sockDiag) ask(request []byte, f func([]byte)) error {
	if err := unix.Sendto(d.fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(d.fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		msgs, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return err
		}
		for _, m := range msgs {
			switch m.Header.Type {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR: // an acknowledgement, too
				if len(m.Data) < 4 {
					return errors.New("the kernel sent a short error")
				}
				if e := int32(binary.NativeEndian.Uint32(m.Data)); e != 0 {
					return syscall.Errno(-e)
				}
				return nil
			}
			f(m.Data)
		}
	}
}

// parseTCPSocket reads an inet_diag_msg; ok is false for one that is too short.
func parseTCPSocket(m []byte) (s tcpSocket, ok bool) {
	if len(m) < diagMessageSize {
		return s, false
	}
	s.family, s.state = m[0], m[1]
	copy(s.id[:], m[4:])
	addr := s.id[4:8]
	if s.family == unix.AF_INET6 {
		addr = s.id[4:20]
	}
	a, _ := netip.AddrFromSlice(addr)
	s.at = netip.AddrPortFrom(a.Unmap(), binary.BigEndian.Uint16(s.id[:]))
	s.inode = uint64(binary.NativeEndian.Uint32(m[68:]))
	return s, true
}
