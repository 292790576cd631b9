package wire

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/lastread"
)

// sendLimit bounds how long a message waits for the other side to read.
const sendLimit = 60 * time.Second

// Conn is one end of a connection. One goroutine may receive while others
// send.
type Conn struct{ sock *net.UnixConn }

// NewConn takes over a descriptor of a SOCK_SEQPACKET socket.
func NewConn(f *os.File) (*Conn, error) {
	defer f.Close()
	if typ, err := unix.GetsockoptInt(int(f.Fd()), unix.SOL_SOCKET, unix.SO_TYPE); err != nil ||
		typ != unix.SOCK_SEQPACKET {
		return nil, errors.New("not a connection of the plugin")
	}
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("not a connection of the plugin")
	}
	return &Conn{u}, nil
}

// Over is a connection over a SOCK_SEQPACKET socket that the caller closes.
func Over(sock *net.UnixConn) *Conn { return &Conn{sock} }

// Pair returns two connected ends: a connection and a descriptor to give away.
func Pair() (*Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	other := os.NewFile(uintptr(fds[1]), "plugin")
	c, err := NewConn(os.NewFile(uintptr(fds[0]), "plugin"))
	if err != nil {
		other.Close()
		return nil, nil, err
	}
	return c, other, nil
}

// Until sets the time from which on receiving fails instead of waiting. What has come is received after it, too.
func (c *Conn) Until(t time.Time) error { return c.sock.SetReadDeadline(t) }

// Close ends the connection.
func (c *Conn) Close() error { return c.sock.Close() }

// Send sends a message with descriptors. The caller keeps the descriptors and closes them.
func (c *Conn) Send(m *Message, files ...*os.File) error {
	b, err := m.encode()
	if err != nil {
		return err
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		oob = unix.UnixRights(fds...)
	}
	if err := c.sock.SetWriteDeadline(time.Now().Add(sendLimit)); err != nil {
		return err
	}
	_, _, err = c.sock.WriteMsgUnix(b, oob, nil)
	return err
}

// Receive waits for a message. The caller closes its descriptors. The
// error is [io.EOF] when the other side has closed or ended.
func (c *Conn) Receive() (*Message, []*os.File, error) {
	b := make([]byte, Size+1)
	oob := make([]byte, unix.CmsgSpace(4*(MaxFDs+3)))
	var n, oobn, flags int
	var errno error
	err := lastread.Do(c.sock, func(fd uintptr) bool {
		n, oobn, flags, _, errno = unix.Recvmsg(int(fd), b, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		return errno != unix.EAGAIN
	})
	if err = cmp.Or(err, errno); err != nil {
		if errors.Is(err, unix.ECONNRESET) || errors.Is(err, io.EOF) {
			err = io.EOF
		}
		return nil, nil, err
	}
	files, err := received(oob[:oobn])
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = errors.New("descriptors of a message were lost (hint: raise the limit of open files)")
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	var m *Message
	if err == nil {
		m, err = decode(b[:n])
	}
	if err != nil {
		closeAll(files)
		return nil, nil, err
	}
	return m, files, nil
}

func received(oob []byte) ([]*os.File, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			closeAll(files)
			return nil, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), fmt.Sprintf("received %d", fd)))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// Peer returns the process that made the connection: its pid in this process's
// namespace, and a pidfd of it that does not block, nil when it has ended. The pid
// is its own as long as the pidfd says that it has not ended.
func (c *Conn) Peer() (pid int, pidfd *os.File, err error) { return c.peer(unix.SO_PEERPIDFD) }

// peer asks for a pidfd by a socket option.
func (c *Conn) peer(option int) (pid int, pidfd *os.File, err error) {
	raw, err := c.sock.SyscallConn()
	if err != nil {
		return 0, nil, err
	}
	fd := -1
	ctl := raw.Control(func(sock uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(sock), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return
		}
		if pid = int(cred.Pid); pid == 0 {
			err = errors.New("the process at the other end is not visible from here")
			return
		}
		fd, err = unix.GetsockoptInt(int(sock), unix.SOL_SOCKET, option)
		if err == unix.ENOPROTOOPT { // Linux before 6.5
			fd, err = unix.PidfdOpen(pid, 0)
		}
	})
	switch {
	case ctl != nil:
		return 0, nil, ctl
	case err == unix.ESRCH || err == unix.EINVAL: // EINVAL of SO_PEERPIDFD before Linux 6.16
		return pid, nil, nil
	case err == nil:
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return 0, nil, err
	}
	return pid, os.NewFile(uintptr(fd), "pidfd"), nil
}
