package wire

import (
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/descriptors"
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
	end := descriptors.Lack(t)
	time.AfterFunc(50*time.Millisecond, end) // a few tries
	var told []error
	failed := func(err error) { told = append(told, err) }
	taken, err := Accept(l, failed)
	if err != nil {
		t.Fatal(err)
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
