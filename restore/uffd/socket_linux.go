package uffd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/lastread"
	"github.com/gpucr/gpucr-fs/restore/procfs"
)

// Constants that golang.org/x/sys lacks, from asm-generic/socket.h and
// linux/socket.h, held to the headers by TestABI.
const (
	soPassPidfd = 76
	soPeerPidfd = 77
	scmPidfd    = 4
)

// restoreFinished is what CRIU sends when all tasks are restored: "RSTF".
const restoreFinished = 0x52535446

// process is a restored task as the kernel vouched for it.
type process struct {
	pid   int // as seen from here
	pidfd int
}

func (p *process) close() { unix.Close(p.pidfd) }

// ended reports whether the process is gone, and its pid perhaps another's.
func (p *process) ended() bool { return unix.PidfdSendSignal(p.pidfd, 0, nil, 0) != nil }

// socket is the listening end that CRIU knows by name.
type socket struct {
	dir  *os.File
	l    *net.UnixListener
	ino  uint64        // of its path
	came chan accepted // what expect accepts; nil without it
	once sync.Once
	err  error // of close
}

// listen binds lazy-pages.socket in dir, in place of a stale one.
func listen(dir string) (*socket, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open the work directory: %w", err)
	}
	path := filepath.Join(dir, SocketName)
	if err := unix.Unlinkat(int(d.Fd()), SocketName, 0); err != nil && err != unix.ENOENT {
		d.Close()
		return nil, fmt.Errorf("remove stale %s: %w", path, err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: viaFD(d), Net: "unix"})
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	// Accepted sockets inherit these. The kernel then tells with every
	// message which process sent it.
	raw, err := l.SyscallConn()
	if err == nil {
		var e error
		err = raw.Control(func(fd uintptr) {
			e = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, soPassPidfd, 1))
		})
		err = errors.Join(err, e)
	}
	if err != nil {
		l.Close()
		d.Close()
		return nil, fmt.Errorf("ask for credentials on %s (needs linux 6.5): %w", path, err)
	}
	ino, err := inode(d)
	if err != nil {
		l.Close()
		d.Close()
		return nil, fmt.Errorf("look at %s: %w", path, err)
	}
	return &socket{dir: d, l: l, ino: ino}, nil
}

// leaving is how long another server has to go that has been told to. Of a guardian that was killed together with its
// provider the keeper still has the socket, for keeperTimeout.
const leaving = (keeperTimeout + 1) * time.Second

// MayServe refuses a work directory in which another server listens: its socket would be taken away, and the restore
// that it waits for would come here. A socket of another type tells without a connection, which that server would take
// for CRIU's: the kernel says EPROTOTYPE where somebody listens, ECONNREFUSED where nobody does. Class Exists.
func MayServe(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open the work directory: %w", err)
	}
	defer d.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	for end := time.Now().Add(leaving); ; time.Sleep(20 * time.Millisecond) {
		if unix.Connect(fd, &unix.SockaddrUnix{Name: viaFD(d)}) != unix.EPROTOTYPE {
			return nil
		}
		if time.Now().After(end) {
			return &index.Error{Class: index.Exists, Op: "lazy-pages", File: dir,
				Err:  errors.New("another server waits for a restore in that work directory"),
				Hint: "end it, or give another work directory with -W"}
		}
	}
}

// viaFD names the socket through the open directory: names of sockets may have
// 107 bytes only.
func viaFD(d *os.File) string { return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), SocketName) }

// close removes the socket. It may be called more than once.
func (s *socket) close() error {
	s.once.Do(func() {
		if err := s.l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			s.err = err
		}
		s.err = errors.Join(s.err, s.unlink(), s.dir.Close())
	})
	return s.err
}

// take is accept without expect.
func (s *socket) take(ctx context.Context) (*conn, error) {
	defer context.AfterFunc(ctx, func() { s.l.Close() })()
	c, err := s.l.AcceptUnix()
	if ctx.Err() != nil {
		if c != nil {
			c.Close()
		}
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("accept criu: %w", err)
	}
	k := &conn{c: c, criu: &process{pidfd: -1}, left: make(chan struct{})}
	raw, err := c.SyscallConn()
	if err == nil {
		e := raw.Control(func(fd uintptr) {
			var cred *unix.Ucred
			if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				k.criu.pid = int(cred.Pid)
				k.criu.pidfd, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, soPeerPidfd)
			}
		})
		err = errors.Join(err, e)
	}
	// First of all: when it is killed, this tells what it has left.
	k.exe = procfs.Program(k.criu.pid)
	k.samePIDs = samePIDs(k.criu.pid)
	if err != nil {
		err = fmt.Errorf("ask who connected: %w", err)
	}
	if err = errors.Join(err, s.close()); err != nil {
		c.Close()
		return nil, err
	}
	if k.ended, err = newEventFD(); err != nil {
		k.close()
		return nil, err
	}
	k.watch.Go(k.watchCRIU)
	return k, nil
}

// conn is the connection that all restored tasks and the main CRIU process
// share. The tasks keep it open when that process is killed, so it is watched.
type conn struct {
	c    *net.UnixConn
	criu *process
	exe  string // what it runs
	// samePIDs: it sees the same pids as this process.
	samePIDs bool
	ended    *eventFD
	left     chan struct{} // closed by leave
	watch    sync.WaitGroup
}

func (c *conn) watchCRIU() {
	if _, err := waitReadable(0, c.criu.pidfd, c.ended.fd); err == nil {
		c.abort()
	}
}

func (c *conn) close() { c.leave().close() }

// leave is close, but for CRIU's handle, which it gives to the caller.
func (c *conn) leave() *process {
	close(c.left)
	if c.ended != nil {
		c.ended.set()
		c.watch.Wait()
		c.ended.close()
	}
	c.c.Close()
	return c.criu
}

// abort makes reads fail when what has been sent is used up.
func (c *conn) abort() { c.c.CloseRead() }

// read fills p from one or more messages and returns what came with the first: who sent it, and a descriptor or -1.
// Where there is no room for these it waits, as a message that is read then has lost them. Of a message without a
// descriptor it may be a copy of the next one's: the kernel's look goes on until it finds one.
func (c *conn) read(p []byte) (from *process, fd int, err error) {
	oob := make([]byte, 256)
	err = patiently(func() error {
		msgs, err := peekControl(c.c, oob)
		var cerr error
		if from, fd, cerr = control(msgs); err == nil {
			err = cerr
		}
		if err != nil {
			from.close()
			unix.Close(fd)
		}
		return err
	})
	for err == nil && len(p) > 0 {
		var n int
		n, err = lastread.From{C: c.c}.Read(p)
		p = p[n:]
	}
	switch {
	case errors.Is(err, io.EOF):
		return nil, -1, fmt.Errorf("criu closed the connection: %w", io.ErrUnexpectedEOF)
	case err != nil:
		return nil, -1, fmt.Errorf("read from criu: %w", err)
	}
	return from, fd, nil
}

// task receives one task: its pid as in the images, who it is, and its
// userfaultfd. A zombie has none: fd is -1.
func (c *conn) task() (pid int, task *process, fd int, err error) {
	var b [4]byte
	from, next, err := c.read(b[:])
	if err != nil {
		return 0, nil, -1, err
	}
	unix.Close(next)
	if from.pidfd < 0 {
		return 0, nil, -1, errors.New("the kernel does not tell which process is restored")
	}
	vpid := int32(binary.NativeEndian.Uint32(b[:]))
	if vpid < 0 {
		from.close()
		return int(-vpid), nil, -1, nil
	}
	same, fd, err := c.read(b[:1])
	if err == nil {
		same.close()
		if fd < 0 {
			err = fmt.Errorf("criu sent no userfaultfd for task %d", vpid)
		}
	}
	if err != nil {
		from.close()
		return 0, nil, -1, err
	}
	return int(vpid), from, fd, nil
}

// finished waits for the word that all tasks are restored.
func (c *conn) finished() error {
	var b [4]byte
	from, next, err := c.read(b[:])
	if err != nil {
		return err
	}
	unix.Close(next)
	from.close()
	if v := binary.NativeEndian.Uint32(b[:]); v != restoreFinished {
		return fmt.Errorf("criu sent %#x instead of the end of the restore", v)
	}
	return nil
}

// control takes apart what came with a message: who sent it, and a descriptor or -1. Of who sent it the handle is
// negative when the kernel does not tell.
func control(msgs []unix.SocketControlMessage) (from *process, fd int, err error) {
	from, fd = &process{pidfd: -1}, -1
	for _, m := range msgs {
		if m.Header.Level != unix.SOL_SOCKET {
			continue
		}
		switch m.Header.Type {
		case unix.SCM_CREDENTIALS:
			if len(m.Data) >= int(unsafe.Sizeof(unix.Ucred{})) {
				from.pid = int(int32(binary.NativeEndian.Uint32(m.Data)))
			}
		case scmPidfd:
			if len(m.Data) >= 4 {
				from.pidfd = int(int32(binary.NativeEndian.Uint32(m.Data)))
			}
		case unix.SCM_RIGHTS:
			fds, err := unix.ParseUnixRights(&m)
			if err != nil || len(fds) != 1 {
				closeAll(fds)
				return from, -1, fmt.Errorf("criu sent %d descriptors: %w", len(fds), err)
			}
			fd = fds[0]
		}
	}
	if e := unix.Errno(-from.pidfd); from.pidfd < 0 && prefetch.IsLack(e) {
		return from, fd, fmt.Errorf("take the handle of its process: %w", e)
	}
	return from, fd, nil
}
