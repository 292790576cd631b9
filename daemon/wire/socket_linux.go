package wire

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoDaemon: no daemon listens for the store.
var ErrNoDaemon = errors.New("no daemon")

// Handover bounds the wait for the successor of a daemon that was killed.
const Handover = 10 * time.Second

// Endpoint is one of the sockets that a daemon has in its store, or in the folder Away where it cannot write to the
// store.
type Endpoint struct{ name, network string }

var (
	// Operations takes operations, by HTTP.
	Operations = Endpoint{"daemon.sock", "unix"}
	// Descriptors takes what comes with descriptors, in packets.
	Descriptors = Endpoint{"fill.sock", "unixpacket"}
)

// maxSun is the length in bytes of struct sockaddr_un's sun_path, the final NUL included (linux/un.h).
const maxSun = 108

// address gives a name for the socket of the store at dir that fits a socket address, and a function to call when it
// has been used.
func (e Endpoint) address(dir string) (string, func(), error) {
	if p := filepath.Join(dir, e.name); len(p) < maxSun {
		return p, func() {}, nil
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, e.name), func() { unix.Close(fd) }, nil
}

// Listen makes the socket in dir, a store's folder or its Away, whose lock the caller holds: any socket found there
// is a dead daemon's.
func (e Endpoint) Listen(dir string) (*net.UnixListener, error) {
	p, done, err := e.address(dir)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove stale socket: %w", err)
	}
	l, err := net.ListenUnix(e.network, &net.UnixAddr{Name: p, Net: e.network})
	if err != nil {
		return nil, fmt.Errorf("make the socket %s: %w", e.name, err)
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(p, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Dial connects to the daemon of the store at dir. ErrNoDaemon when none listens.
func (e Endpoint) Dial(ctx context.Context, dir string) (*net.UnixConn, error) {
	c, err := e.dialIn(ctx, dir)
	if !errors.Is(err, ErrNoDaemon) {
		return c, err
	}
	away, aerr := Away(dir)
	if aerr != nil {
		return nil, err
	}
	return e.dialIn(ctx, away)
}

func (e Endpoint) dialIn(ctx context.Context, dir string) (*net.UnixConn, error) {
	p, done, err := e.address(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, ErrNoDaemon
	}
	if err != nil {
		return nil, err
	}
	defer done()
	var nd net.Dialer
	c, err := nd.DialContext(ctx, e.network, p)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, ErrNoDaemon
	}
	if errno := unix.Errno(0); errors.As(err, &errno) { // what net says around it are names of sockets
		return nil, fmt.Errorf("reach the daemon of the store %s: %w", dir, errno)
	}
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// Remove takes the socket's name out of dir.
func (e Endpoint) Remove(dir string) { os.Remove(filepath.Join(dir, e.name)) }

// Peer gives the user and process at the other end, as the kernel noted them when the connection was made. pid is 0
// for a process in another pid namespace.
func Peer(c net.Conn) (uid uint32, pid int, err error) {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return 0, 0, errors.New("not a unix socket")
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var cred *unix.Ucred
	var gerr error
	if err := raw.Control(func(fd uintptr) {
		cred, gerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, 0, err
	}
	if gerr != nil {
		return 0, 0, gerr
	}
	return cred.Uid, int(cred.Pid), nil
}

// MayAsk tells whether the user at the other end may ask the daemon for anything: root and the daemon's own user.
func MayAsk(c net.Conn) (uid uint32, ok bool, err error) {
	uid, _, err = Peer(c)
	return uid, err == nil && (uid == 0 || int(uid) == os.Geteuid()), err
}
