package client

import (
	"bufio"
	"errors"
	"net/http"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/daemon/wire"
)

// A command without descriptors does not take a daemon that serves for one that leaves.
func TestServingDaemonDoesNotLeave(t *testing.T) {
	dir := t.TempDir()
	l, err := wire.Operations.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() {
		c, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		defer c.Close()
		_, err = http.ReadRequest(bufio.NewReader(c))
		low := limit
		low.Cur = 3
		err = errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
		c.Write([]byte("HTTP/1.1 200 OK\r\n\r\n"))
		served <- err
	}()
	c, err := newClient(t.Context(), dir)
	if lerr := errors.Join(<-served, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)); lerr != nil {
		t.Fatal(lerr)
	}
	if err == nil {
		c.close()
	}
	if errors.Is(err, wire.ErrNoDaemon) || !errors.Is(err, unix.EMFILE) {
		t.Errorf("told: %v", err)
	}
}
