package preflight

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// network is what a network namespace tells of its sockets.
type network struct {
	tcp  map[uint64]tcpSocket
	unix map[uint64]unixSocket
}

// unixSocket is one of the family AF_UNIX. peer is the inode of its other end, 0 without one.
type unixSocket struct {
	name  string
	peer  uint64
	dgram bool
}

// readNetwork reads the sockets of the network namespace of a process.
func readNetwork(pid int) (*network, error) {
	n := &network{tcp: map[uint64]tcpSocket{}}
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, name))
		if err != nil {
			if gone(err) { // without IPv6 there is no tcp6
				continue
			}
			return nil, err
		}
		err = eachTCP(f, func(s tcpSocket) { n.tcp[s.inode] = s })
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	var err error
	if n.unix, err = unixSockets(pid); err != nil {
		return nil, fmt.Errorf("ask for the unix sockets of process %d: %w", pid, err)
	}
	return n, nil
}

// protocol is the kernel's name of a socket's protocol, such as "TCP", "UNIX-STREAM" or "NETLINK".
func (t *task) protocol(fd int) string {
	var name [64]byte
	n, err := unix.Getxattr(t.path("fd", strconv.Itoa(fd)), "system.sockprotoname", name[:])
	if err != nil {
		return ""
	}
	return strings.TrimRight(string(name[:n]), "\x00")
}

// dumpedProtocols are those that CRIU 4.2 dumps, without "v6" and the like behind them.
var dumpedProtocols = []string{"TCP", "UDP", "UDP-Lite", "UDPLITE", "UNIX", "NETLINK", "PACKET", "RAW", "PING"}

// judgeSockets looks at all sockets of the tree.
func (a *family) judgeSockets() error {
	inside := map[uint64]bool{}
	for _, t := range a.tasks {
		for _, s := range t.sockets {
			inside[s.inode] = true
		}
	}
	networks := map[string]*network{}
	for _, t := range a.tasks {
		if len(t.sockets) == 0 {
			continue
		}
		ns, err := os.Readlink(t.path("ns/net"))
		if err != nil {
			continue
		}
		net := networks[ns]
		if net == nil {
			if net, err = readNetwork(t.pid); gone(err) {
				continue
			} else if err != nil {
				return err
			}
			networks[ns] = net
		}
		seen := map[uint64]bool{}
		for _, s := range t.sockets {
			if !seen[s.inode] {
				seen[s.inode] = true
				t.judgeSocket(a, net, s, inside)
			}
		}
	}
	return nil
}

func (t *task) judgeSocket(a *family, net *network, s socket, inside map[uint64]bool) {
	if u, ok := net.unix[s.inode]; ok {
		if strings.Contains(u.name, ncclSocket) {
			t.gpu.nccl = true
		}
		external := a.o.has("external") &&
			strings.Contains(a.o.CRIU.Value("external"), fmt.Sprintf("unix[%d]", s.inode))
		peer, known := net.unix[u.peer]
		// CRIU reconnects datagram sockets to a name outside by --ext-unix-sk.
		reconnected := a.o.has("ext-unix-sk") && known && peer.dgram && peer.name != ""
		if u.peer != 0 && !inside[u.peer] && !external && !reconnected {
			name := peer.name
			if name == "" {
				name = "no name"
			}
			t.add(kindUnixPeer, "descriptor %d to %s, inode %d", s.fd, name, s.inode)
		}
		return
	}
	protocol := t.protocol(s.fd)
	switch base, _, _ := strings.Cut(strings.TrimSuffix(protocol, "v6"), "-"); {
	case strings.HasPrefix(protocol, "MPTCP"):
		t.add(kindMPTCP, "descriptor %d", s.fd)
	case protocol != "" && !slices.Contains(dumpedProtocols, base):
		t.add(kindSocket, "%s, descriptor %d", protocol, s.fd)
	}
	c, ok := net.tcp[s.inode]
	if !ok {
		return
	}
	switch {
	case c.state == tcpListens:
		if c.waiting > 0 && !a.o.has("skip-in-flight") {
			t.add(kindBacklog, "%d at descriptor %d", c.waiting, s.fd)
		}
	case c.state == tcpClosed || c.state == tcpTimeWait:
	case !a.o.has("tcp-established", "tcp-close"):
		t.add(kindTCP, "descriptor %d to %s", s.fd, address(c.remote))
	case a.o.has("tcp-established") && !iptables(a.o):
		t.add(kindLock, "descriptor %d to %s", s.fd, address(c.remote))
	}
}

// iptables tells whether CRIU's means to hold connections back is there: a program, unless another way is chosen.
func iptables(o *Options) bool {
	if o.has("network-lock") && o.CRIU.Value("network-lock") != "iptables" {
		return true
	}
	_, err := exec.LookPath("iptables")
	return err == nil
}

// address writes an address of /proc/net/tcp, words in the machine's order, as one does.
func address(s string) string {
	host, port, ok := strings.Cut(s, ":")
	p, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || len(host)%8 != 0 {
		return s
	}
	var ip []byte
	for ; host != ""; host = host[8:] {
		w, err := strconv.ParseUint(host[:8], 16, 32)
		if err != nil {
			return s
		}
		ip = append(ip, byte(w), byte(w>>8), byte(w>>16), byte(w>>24))
	}
	return fmt.Sprintf("%s port %d", ipText(ip), p)
}
