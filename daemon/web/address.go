package web

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/netutil"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// unixPrefix stands before the path of a unix socket in an address.
const unixPrefix = "unix:"

// maxConnections is how many clients a server has at a time; others wait in the kernel's queue.
const maxConnections = 64

// checkAddr refuses what is no address, whatever this machine has.
func checkAddr(addr string) error {
	if path, ok := strings.CutPrefix(addr, unixPrefix); ok {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("the path %q of a unix socket must begin with /", path)
		}
		return nil
	}
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return fmt.Errorf("%q is no address: %w", addr, err)
	}
	return nil
}

// listen opens an address. loopback tells that nobody outside the machine reaches it; private that only root and the
// daemon's user do.
func listen(addr string) (l net.Listener, loopback, private bool, err error) {
	if path, ok := strings.CutPrefix(addr, unixPrefix); ok {
		l, err = listenUnix(path)
		return l, true, true, err
	}
	l, err = net.Listen("tcp", addr)
	if err != nil {
		return nil, false, false, err
	}
	at, err := netip.ParseAddrPort(l.Addr().String())
	if err != nil {
		return nil, false, false, errors.Join(err, l.Close())
	}
	return netutil.LimitListener(l, maxConnections), at.Addr().Unmap().IsLoopback(), false, nil
}

// listenUnix makes a socket at path. What a dead process left there is replaced, anything else is not.
func listenUnix(path string) (net.Listener, error) {
	switch st, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case st.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s is there and is no socket", path)
	default:
		c, err := net.DialTimeout("unix", path, time.Second)
		if err == nil {
			c.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("somebody listens at %s", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return netutil.LimitListener(ownOnly{l}, maxConnections), nil
}

// ownOnly lets only root and the daemon's own user through, also in the moment before the socket has its mode.
type ownOnly struct{ net.Listener }

func (l ownOnly) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if _, ok, _ := wire.MayAsk(c); ok {
			return c, nil
		}
		c.Close()
	}
}

// shown is how an address is told to people: with the port that was chosen.
func shown(addr string, l net.Listener) string {
	if strings.HasPrefix(addr, unixPrefix) {
		return addr
	}
	return l.Addr().String()
}

// minToken is the least length of a token in bytes. What is shorter can be guessed.
const minToken = 16

// readToken reads the token file of an operator: one line that others cannot read.
func readToken(path string) (string, error) {
	fail := func(err error, hint string) error {
		return &index.Error{Class: index.Invalid, Op: "token", File: path, Err: err, Hint: hint}
	}
	// To open a pipe may never end.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fail(errors.New("there is no such file"),
			"make one with: (umask 077; head -c 24 /dev/urandom | base64 >"+path+")")
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !st.Mode().IsRegular() {
		return "", fail(errors.New("it is no regular file"), "write the token into a file")
	}
	if st.Mode().Perm()&0o077 != 0 {
		return "", fail(errors.New("others can read or change it"), "chmod 600 "+path)
	}
	b := make([]byte, 4097)
	n, err := f.Read(b)
	token := strings.TrimSpace(string(b[:n]))
	switch {
	case err != nil && n > 0, n > 4096:
		return "", fail(errors.New("a token has at most 4096 bytes"), "")
	case len(token) < minToken:
		return "", fail(
			fmt.Errorf("a token needs at least %d characters", minToken),
			"head -c 24 /dev/urandom | base64 makes a good one",
		)
	}
	return token, nil
}
