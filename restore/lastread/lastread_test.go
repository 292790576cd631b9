package lastread

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What came before a deadline is read after it: from a pipe, and from a socket of each kind that is used.
func TestReadAfterDeadline(t *testing.T) {
	for name, kind := range map[string]int{"pipe": 0, "stream": unix.SOCK_STREAM, "packets": unix.SOCK_SEQPACKET} {
		t.Run(name, func(t *testing.T) {
			r, w := pair(t, kind)
			if err := r.SetReadDeadline(time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 16)
			if n, err := (From{r}).Read(buf); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("nothing has come: %d, %v", n, err)
			}
			if _, err := w.Write([]byte("word")); err != nil {
				t.Fatal(err)
			}
			if n, err := (From{r}).Read(buf); string(buf[:n]) != "word" || err != nil {
				t.Errorf("read %q, %v", buf[:n], err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if n, err := (From{r}).Read(buf); n != 0 || err != io.EOF {
				t.Errorf("at the end: %d, %v", n, err)
			}
		})
	}
}

// Before the deadline a read waits.
func TestReadWaits(t *testing.T) {
	r, w := pair(t, 0)
	time.AfterFunc(50*time.Millisecond, func() { w.Write([]byte("word")) })
	buf := make([]byte, 16)
	if n, err := (From{r}).Read(buf); string(buf[:n]) != "word" || err != nil {
		t.Errorf("read %q, %v", buf[:n], err)
	}
}

// pair gives two connected ends of a pipe or, of a kind, of sockets.
func pair(t *testing.T, kind int) (r, w *os.File) {
	t.Helper()
	fds := make([]int, 2)
	var err error
	if kind == 0 {
		err = unix.Pipe2(fds, unix.O_CLOEXEC|unix.O_NONBLOCK)
	} else {
		var both [2]int
		both, err = unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		copy(fds, both[:])
	}
	if err != nil {
		t.Fatal(err)
	}
	r, w = os.NewFile(uintptr(fds[0]), "r"), os.NewFile(uintptr(fds[1]), "w")
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}
