package fill

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// A client that comes while the daemon has no descriptor left is answered when it has some again.
func TestConnectWithoutDescriptors(t *testing.T) {
	s := serve(t, newStore(t))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	end := descriptors.Lack(t)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(s.dir, "fill.sock")})
	time.Sleep(20 * time.Millisecond) // the daemon tries to take it
	end()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fd, []byte("{}")); err != nil { // it is refused, and told so
		t.Fatal(err)
	}
	answer := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(answer, 10_000)
	for err == unix.EINTR {
		n, err = unix.Poll(answer, 10_000)
	}
	if n == 0 || err != nil {
		t.Errorf("the daemon takes no connection any more: %v", err)
	}
	c, err := wire.DialPackets(t.Context(), s.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := c.Send(packet{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Receive(&packet{}); err != nil {
		t.Errorf("nor one that comes later: %v", err)
	}
}
