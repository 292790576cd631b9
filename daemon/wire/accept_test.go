package wire

import (
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A socket outlives a time without descriptors, tells of it once, and ends when it is closed.
func TestAcceptWithoutDescriptors(t *testing.T) {
	name := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: name})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	low := limit
	low.Cur = 3
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	restored := make(chan error)
	go func() {
		time.Sleep(50 * time.Millisecond) // a few tries
		restored <- unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	}()
	var told []error
	failed := func(err error) { told = append(told, err) }
	taken, err := Accept(l, failed)
	if rerr := <-restored; err != nil || rerr != nil {
		t.Fatal(err, rerr)
	}
	taken.Close()
	if len(told) != 1 || !errors.Is(told[0], unix.EMFILE) {
		t.Errorf("told of %v", told)
	}
	l.Close()
	if _, err := Accept(l, failed); !errors.Is(err, net.ErrClosed) || len(told) != 1 {
		t.Errorf("after the end: %v, told of %v", err, told)
	}
}
