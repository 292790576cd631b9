package criuimg

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	sk_inet "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-inet"
	sk_unix "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-unix"
)

// Addresses are what only one process tree of a network namespace, or of a file system, can have.
type Addresses struct {
	// Ports are listening, connected and bound sockets of TCP and UDP, such as "tcp 127.0.0.1:8080", and unix sockets
	// with an abstract name, such as "unix @name", without those of NVIDIA's driver.
	Ports []string
	// Sockets are the paths of bound unix sockets.
	Sockets []string
}

// LoadAddresses reads them from the images. There are none in images of CRIU before 3.0.
func LoadAddresses(fsys fs.FS) (a Addresses, err error) {
	err = eachFile(fsys, func(e *fdinfo.FileEntry) {
		if s := e.GetIsk(); s != nil && s.GetSrcPort() != 0 {
			a.Ports = append(a.Ports, port(s))
		}
		a.unix(e.GetUsk())
	})
	if err != nil {
		return a, err
	}
	for _, list := range []*[]string{&a.Ports, &a.Sockets} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return a, nil
}

// eachFile calls f with each entry of files.img, which images of CRIU before 3.0 do not have.
func eachFile(fsys fs.FS, f func(*fdinfo.FileEntry)) error {
	r, err := openImage(fsys, "files.img", magicFiles)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.close()
	for {
		var e fdinfo.FileEntry
		if err := r.next(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		f(&e)
	}
}

// Listener is where a TCP socket of a checkpoint listens.
type Listener struct {
	// At is its address, which for all addresses of the machine is 0.0.0.0 or ::, and its port.
	At netip.AddrPort
	// V6Only tells of a socket of IPv6 that it takes no connections of IPv4.
	V6Only bool
}

// LoadListeners reads from the images where processes listen for TCP connections, each place once.
func LoadListeners(fsys fs.FS) (all []Listener, err error) {
	const tcp, listening = 6, 10 // IPPROTO_TCP, TCP_LISTEN
	err = eachFile(fsys, func(e *fdinfo.FileEntry) {
		s := e.GetIsk()
		if s.GetProto() != tcp || s.GetState() != listening {
			return
		}
		l := Listener{V6Only: s.GetV6Only()}
		if addr, ok := source(s); ok {
			l.At = netip.AddrPortFrom(addr, uint16(s.GetSrcPort()))
			if !slices.Contains(all, l) {
				all = append(all, l)
			}
		}
	})
	return all, err
}

// source gives the local address of a socket.
func source(s *sk_inet.InetSkEntry) (netip.Addr, bool) {
	var b []byte
	for _, word := range s.GetSrcAddr() {
		b = binary.NativeEndian.AppendUint32(b, word)
	}
	return netip.AddrFromSlice(b)
}

// unix enters a unix socket that has a name of its own. One that was accepted has the name of the listening one.
func (a *Addresses) unix(s *sk_unix.UnixSkEntry) {
	const listening, stream, seqpacket = 10, 1, 5 // TCP_LISTEN, SOCK_STREAM, SOCK_SEQPACKET
	name := s.GetName()
	if len(name) == 0 || (s.GetType() == stream || s.GetType() == seqpacket) && s.GetState() != listening {
		return
	}
	if strings.HasPrefix(string(name), driverSocket) {
		return // each pid namespace has names of its own, see FilesFor
	}
	if name[0] == 0 {
		a.Ports = append(a.Ports, "unix @"+string(name[1:]))
		return
	}
	for len(name) > 0 && name[len(name)-1] == 0 {
		name = name[:len(name)-1]
	}
	a.Sockets = append(a.Sockets, string(name))
}

func port(s *sk_inet.InetSkEntry) string {
	const udp = 17
	protocol := "tcp"
	if s.GetProto() == udp {
		protocol = "udp"
	}
	addr, ok := source(s)
	if !ok {
		return fmt.Sprintf("%s port %d", protocol, s.GetSrcPort())
	}
	return fmt.Sprintf("%s %v", protocol, netip.AddrPortFrom(addr, uint16(s.GetSrcPort())))
}
