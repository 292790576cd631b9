package fill

import (
	"encoding/json"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/tests/budget"
)

// pair gives a connection, and a socket that is its other end.
func pair(t testing.TB) (wire.Conn, int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "fill")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return wire.Conn{UnixConn: c.(*net.UnixConn)}, fds[1]
}

// FuzzPackets: whatever a client of the fill service sends, in two packets, with files or without.
func FuzzPackets(f *testing.F) {
	add := func(p, q packet, files uint8) {
		a, err := json.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		b, err := json.Marshal(q)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(a, b, files)
	}
	add(packet{Begin: &begin{Nodes: []string{"n"}, BOs: 1}}, packet{}, 1)
	add(packet{Begin: &begin{}}, packet{}, 0)
	f.Add([]byte(`{"begin":{"bos":131072,"nodes":[]}}`), []byte(`{"bos":[{},{},{}]}`), uint8(0))
	f.Fuzz(func(t *testing.T, first, second []byte, files uint8) {
		if len(first) > wire.MaxPacket || len(second) > wire.MaxPacket || len(first) == 0 || len(second) == 0 {
			return
		}
		defer budget.Watch(t, len(first)+len(second))()
		c, other := pair(t)
		defer c.Close()
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		for _, b := range [][]byte{first, second} {
			var oob []byte
			if n := int(files % 4); n > 0 {
				fds := make([]int, n)
				for i := range fds {
					fds[i] = int(null.Fd())
				}
				oob = unix.UnixRights(fds...)
			}
			if err := unix.Sendmsg(other, b, oob, nil, 0); err != nil {
				break // more than a socket holds
			}
		}
		unix.Close(other)
		var p packet
		got, err := c.Receive(&p)
		if err != nil {
			return
		}
		req, err := receiveRequest(c, p, got)
		if err != nil {
			return
		}
		if len(req.plan.BOs) != req.begin.BOs || len(req.plan.Nodes) != len(req.begin.Nodes) {
			t.Errorf("accepted %+v", req.begin)
		}
		req.close()
	})
}
