package daemon

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

const (
	socketName = "daemon.sock"
	// maxSun is the length in bytes of struct sockaddr_un's sun_path, the final NUL included (linux/un.h).
	maxSun = 108
)

// socketPath gives a name for a socket of the store that fits a socket address, and a function to call when it has been used.
func socketPath(dir, name string) (string, func(), error) {
	if p := filepath.Join(dir, name); len(p) < maxSun {
		return p, func() {}, nil
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, name), func() { unix.Close(fd) }, nil
}

// listen makes the socket of the store at dir, whose lock the caller holds: any socket found there is a dead daemon's.
func listen(dir string) (net.Listener, error) {
	p, done, err := socketPath(dir, socketName)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove stale socket: %w", err)
	}
	l, err := net.Listen("unix", p)
	if err != nil {
		return nil, fmt.Errorf("make the daemon's socket: %w", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := os.Chmod(p, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// dial connects to the daemon of the store at dir. errNoDaemon when none listens.
func dial(ctx context.Context, dir string) (net.Conn, error) {
	p, done, err := socketPath(dir, socketName)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, errNoDaemon
	}
	if err != nil {
		return nil, err
	}
	defer done()
	var nd net.Dialer
	c, err := nd.DialContext(ctx, "unix", p)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, errNoDaemon
	}
	return c, err
}

// peer gives the user and process at the other end, as the kernel noted them when the connection was made. pid is 0 for a process in another pid namespace.
func peer(c net.Conn) (uid uint32, pid int, err error) {
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
	if err := raw.Control(func(fd uintptr) { cred, gerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, 0, err
	}
	if gerr != nil {
		return 0, 0, gerr
	}
	return cred.Uid, int(cred.Pid), nil
}

// process is a handle on the daemon's process that outlives its pid.
type process struct{ fd int }

func openProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return &process{fd}, nil
}

func (p *process) close() { unix.Close(p.fd) }

// wait returns when the process has ended.
func (p *process) wait(ctx context.Context) error {
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

// hasSocket tells whether a daemon, alive or not, has left its name in the store.
func hasSocket(dir string) (bool, error) {
	_, err := os.Lstat(filepath.Join(dir, socketName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
