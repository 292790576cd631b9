package uffd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/procfs"
)

// CRIU's socket may be there before anybody knows what is restored. The provider binds it and hands it to the guardian,
// which accepts at once. From then on the guardian owns it: its end is the end of CRIU's connection. The provider keeps
// the directory until CRIU's tasks come, and removes the path should the guardian fail before.

// accepted is CRIU's connection, or why there is none.
type accepted struct {
	conn *conn
	err  error
}

// hand gives the socket to the process at the other end of w, and keeps the directory only.
func (s *socket) hand(w *wire) error {
	f, err := s.l.File()
	if err != nil {
		return fmt.Errorf("hand on the socket for criu: %w", err)
	}
	defer f.Close()
	err = w.send(&packet{kind: kindListen, id: s.ino, fds: []int{int(f.Fd()), int(s.dir.Fd())}})
	if err != nil {
		return fmt.Errorf("%w: it did not take the socket for criu: %w", ErrGuardian, err)
	}
	return s.l.Close()
}

// handedSocket makes a socket of what hand has sent; it owns the packet's descriptors.
func handedSocket(p *packet) (*socket, error) {
	if len(p.fds) != 2 {
		closeAll(p.fds)
		return nil, fmt.Errorf("the socket for criu came with %d descriptors", len(p.fds))
	}
	f, dir := os.NewFile(uintptr(p.fds[0]), SocketName), os.NewFile(uintptr(p.fds[1]), "work directory")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("take the socket for criu: %w", err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		dir.Close()
		return nil, errors.New("the socket for criu is no unix socket")
	}
	return &socket{dir: dir, l: u, ino: p.id}, nil
}

// expect has CRIU accepted before accept is called: once CRIU has ended, nothing tells any more which process it was
// and what it ran.
func (s *socket) expect() {
	s.came = make(chan accepted, 1)
	go func() {
		c, err := s.take(context.Background())
		s.came <- accepted{c, err}
	}()
}

// refuse closes a socket for which expect was called, and the connection that CRIU may have made. It ends the tasks
// that have come: a CRIU that was killed together with the provider and its caller leaves them waiting for it for ever.
// Then it waits for CRIU's end.
func (s *socket) refuse() {
	s.unlink()
	var a *accepted
	for a == nil && s.pending() {
		select {
		case got := <-s.came:
			a = &got
		case <-time.After(time.Millisecond):
		}
	}
	s.close()
	if a == nil {
		got := <-s.came
		a = &got
	}
	if a.conn == nil {
		return
	}
	ended := a.conn.refuse()
	criu := a.conn.leave()
	if ended {
		outlast(criu, nil)
	}
	criu.close()
}

// pending tells whether somebody has connected who was not accepted yet.
func (s *socket) pending() (yes bool) {
	raw, err := s.l.SyscallConn()
	if err != nil {
		return false
	}
	raw.Control(func(fd uintptr) {
		events, err := procfs.Readable(int(fd))
		yes = err == nil && events == unix.POLLIN
	})
	return yes
}

// lastTask is how long a task is waited for that is just coming to a guardian that will not serve. One that has come is
// taken after that, too, and waited for where there is no room for its descriptors.
const lastTask = 50 * time.Millisecond

// refuse ends the tasks that have come, and what they have made. Their userfaultfds stay open until then: without them
// they would go on with pages of zeros. It reports whether there were any.
func (c *conn) refuse() bool {
	c.c.SetReadDeadline(time.Now().Add(lastTask))
	var came []*process
	var pids []int
	for {
		_, task, fd, err := c.task()
		if err != nil {
			break
		}
		if fd >= 0 {
			defer unix.Close(fd)
		}
		if task != nil {
			defer task.close()
			came, pids = append(came, task), append(pids, task.pid)
			unix.PidfdSendSignal(task.pidfd, unix.SIGSTOP, nil, 0)
		}
	}
	below := descendants(pids)
	for _, p := range came {
		unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0)
	}
	killTogether(below)
	return len(came) > 0
}

// accept waits for CRIU. Only one connection is made, so the socket goes away.
func (s *socket) accept(ctx context.Context) (*conn, error) {
	if s.came == nil {
		return s.take(ctx)
	}
	select {
	case a := <-s.came:
		return a.conn, a.err
	case <-ctx.Done():
		s.refuse()
		return nil, ctx.Err()
	}
}

// unlink removes the socket's path, unless another server has taken it meanwhile.
func (s *socket) unlink() error {
	ino, err := inode(s.dir)
	if err == nil && ino == s.ino {
		err = unix.Unlinkat(int(s.dir.Fd()), SocketName, 0)
	}
	if err != nil && err != unix.ENOENT {
		return fmt.Errorf("remove %s: %w", SocketName, err)
	}
	return nil
}

// inode gives the number of the socket in dir.
func inode(dir *os.File) (uint64, error) {
	var st unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), SocketName, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st.Ino, err
}
