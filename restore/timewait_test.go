package restore

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/criuimg"
	"github.com/gpucr/gpucr-fs/restore/diagnosis"
)

// fakeDiag answers for a kernel whose sockets are given, and that ends none if refuses is set.
type fakeDiag struct {
	all     []tcpSocket
	refuses error
	until   time.Time // the sockets in TIME_WAIT are gone then, if it is set
	ended   []netip.AddrPort
}

func (d *fakeDiag) sockets(port uint16) (all []tcpSocket, err error) {
	for _, s := range d.all {
		over := s.state == tcpTimeWait && !d.until.IsZero() && !time.Now().Before(d.until)
		if s.at.Port() == port && !over {
			all = append(all, s)
		}
	}
	return all, nil
}

func (d *fakeDiag) destroy(s tcpSocket) error {
	if d.refuses == nil {
		d.ended = append(d.ended, s.at)
	}
	return d.refuses
}

func sock(id, state byte, at string) tcpSocket {
	return tcpSocket{state: state, at: netip.MustParseAddrPort(at), id: [diagIDSize]byte{id}}
}

func listener(at string, v6Only bool) criuimg.Listener {
	return criuimg.Listener{At: netip.MustParseAddrPort(at), V6Only: v6Only}
}

// Where the kernel does not end a connection in TIME_WAIT it is waited for, which is told; when it does not end, the
// error says so, and an interrupt ends the wait.
func TestTimeWaitIsWaitedFor(t *testing.T) {
	need := []criuimg.Listener{listener("127.0.0.1:80", false)}
	all := []tcpSocket{sock(1, tcpTimeWait, "127.0.0.1:80"), sock(2, tcpTimeWait, "127.0.0.1:80")}
	synctest.Test(t, func(t *testing.T) {
		for _, refuses := range []error{unix.EOPNOTSUPP, unix.EPERM} {
			began := time.Now()
			d := &fakeDiag{all: all, refuses: refuses, until: began.Add(50 * time.Second)}
			var told []string
			what, err := freePorts(t.Context(), d, need, func(s string) { told = append(told, s) })
			if took := time.Since(began); err != nil || !strings.Contains(what, "port 80 was held") ||
				took < 50*time.Second || took > 52*time.Second {
				t.Errorf("%q, %v after %v", what, err, took)
			}
			if len(told) != 1 || !strings.Contains(told[0], "port 80") || !strings.Contains(told[0], "waiting") {
				t.Errorf("told %q", told)
			}
		}
		began := time.Now()
		_, err := freePorts(t.Context(), &fakeDiag{all: all, refuses: unix.EOPNOTSUPP}, need, func(string) {})
		if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "port 80") || took > 70*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		_, err = freePorts(ctx, &fakeDiag{all: all, refuses: unix.EPERM}, need, func(string) {})
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > 2*time.Second {
			t.Errorf("interrupted: %v after %v", err, took)
		}
	})
}

// Only connections in TIME_WAIT that are in the way are ended, and none while a process listens there.
func TestWhatIsEnded(t *testing.T) {
	for name, c := range map[string]struct {
		need         criuimg.Listener
		state        byte
		at           string
		ended, fails bool
	}{
		"in the way":                 {listener("127.0.0.1:80", false), tcpTimeWait, "127.0.0.1:80", true, false},
		"of every address":           {listener("0.0.0.0:80", false), tcpTimeWait, "10.0.0.1:80", true, false},
		"IPv6":                       {listener("[::1]:80", false), tcpTimeWait, "[::1]:80", true, false},
		"IPv6, every address":        {listener("[::]:80", true), tcpTimeWait, "[::1]:80", true, false},
		"IPv4 of a listener of both": {listener("[::]:80", false), tcpTimeWait, "10.0.0.1:80", true, false},
		"IPv4 of one of IPv6":        {listener("[::]:80", true), tcpTimeWait, "10.0.0.1:80", false, false},
		"IPv6 of one of IPv4":        {listener("0.0.0.0:80", false), tcpTimeWait, "[::1]:80", false, false},
		"another address":            {listener("127.0.0.1:80", false), tcpTimeWait, "127.0.0.2:80", false, false},
		"another port":               {listener("127.0.0.1:80", false), tcpTimeWait, "127.0.0.1:81", false, false},
		"open":                       {listener("127.0.0.1:80", false), 1, "127.0.0.1:80", false, true},
		"half closed":                {listener("127.0.0.1:80", false), 5, "127.0.0.1:80", false, true},
		"listens":                    {listener("127.0.0.1:80", false), tcpListens, "127.0.0.1:80", false, true},
		"listens at every address":   {listener("127.0.0.1:80", false), tcpListens, "[::]:80", false, true},
	} {
		d := &fakeDiag{all: []tcpSocket{sock(1, c.state, c.at)}}
		what, err := freePorts(t.Context(), d, []criuimg.Listener{c.need}, func(s string) { t.Error(s) })
		var f *diagnosis.Failure
		if (len(d.ended) > 0) != c.ended || (what != "") != c.ended || errors.As(err, &f) != c.fails || f != nil &&
			(!strings.Contains(f.Cause, "port 80") || f.Hint == "") {
			t.Errorf("%s: ended %v, %q, %v", name, d.ended, what, err)
		}
	}
	d := &fakeDiag{all: []tcpSocket{sock(1, tcpTimeWait, "10.0.0.1:80"), sock(2, tcpListens, "10.0.0.1:80")}}
	_, err := freePorts(t.Context(), d, []criuimg.Listener{listener("0.0.0.0:80", false)}, func(string) {})
	if err == nil || len(d.ended) > 0 {
		t.Errorf("beside a listener %v were ended, %v", d.ended, err)
	}
}

// The kernel names each socket of a port with its state, and ends one in TIME_WAIT when it is told to; what has the
// same addresses and another cookie stays.
func TestSockDiag(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
		var plain net.ListenConfig
		plain.SetMultipathTCP(false)
		l, err := plain.Listen(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		at := l.Addr().(*net.TCPAddr).AddrPort()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		c.Read(make([]byte, 1))
		c.Close()
		d, err := openSockDiag()
		if err != nil {
			t.Fatal(err)
		}
		count := func() map[byte]int {
			all, err := d.sockets(at.Port())
			if err != nil {
				t.Fatal(err)
			}
			n := map[byte]int{}
			for _, s := range all {
				n[s.state]++
				if s.state == tcpListens && !strings.HasPrefix(userOf(s.inode), "process ") {
					t.Errorf("nobody has %v", s)
				}
			}
			return n
		}
		if n := count(); n[tcpListens] != 1 || n[tcpTimeWait] != 1 || len(n) != 2 {
			t.Fatalf("%s: %v", addr, n)
		}
		all, _ := d.sockets(at.Port())
		for _, s := range all {
			if s.state == tcpTimeWait {
				other := s
				other.id[40] ^= 1 // the cookie
				if err := d.destroy(other); err != nil || count()[tcpTimeWait] != 1 {
					t.Errorf("%s, of another socket: %v", addr, err)
				}
				for range 2 { // the second time it is gone
					if err := d.destroy(s); err != nil {
						t.Errorf("%s: %v", addr, err)
					}
				}
			}
		}
		if n := count(); n[tcpListens] != 1 || len(n) != 1 {
			t.Errorf("%s: %v is left", addr, n)
		}
		d.close()
		l.Close()
	}
}

// The network namespace is the one that criu restores in.
func TestNetworkOfRestore(t *testing.T) {
	parse := func(args ...string) Args {
		a, err := ParseArgs(args)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	own := fstest.MapFS{"netns-9.img": {}}
	for _, c := range []struct {
		images fstest.MapFS
		args   Args
		file   string
		fresh  bool
	}{
		{nil, parse(), "", false},
		{own, parse(), "", true},
		{own, parse("--join-ns", "net:431"), "/proc/431/ns/net", false},
		{own, parse("-J", "net:/run/netns/a"), "/run/netns/a", false},
		{own, parse("--join-ns", "uts:431"), "", true},
		{own, parse("--inherit-fd", "fd[7]:a", "--external", "net[12]:a"), "/proc/self/fd/7", false},
		{own, parse("--inherit-fd", "fd[7]:a", "--external", "net[12]:b"), "", true},
	} {
		if file, fresh := c.args.network(c.images); file != c.file || fresh != c.fresh {
			t.Errorf("%q, %v instead of %q, %v", file, fresh, c.file, c.fresh)
		}
	}
	d, err := sockDiagIn("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	d.close()
	if _, err := sockDiagIn("/nowhere"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
