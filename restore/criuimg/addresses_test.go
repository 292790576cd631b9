package criuimg

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fown"
	sk_inet "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-inet"
	sk_opts "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-opts"
	sk_unix "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-unix"
	"google.golang.org/protobuf/proto"
)

func owner() *fown.FownEntry {
	return &fown.FownEntry{Uid: proto.Uint32(0), Euid: proto.Uint32(0), Signum: proto.Uint32(0),
		PidType: proto.Uint32(0), Pid: proto.Uint32(0)}
}

func options() *sk_opts.SkOptsEntry {
	return &sk_opts.SkOptsEntry{SoSndbuf: proto.Uint32(0), SoRcvbuf: proto.Uint32(0), SoSndTmoSec: proto.Uint64(0),
		SoSndTmoUsec: proto.Uint64(0), SoRcvTmoSec: proto.Uint64(0), SoRcvTmoUsec: proto.Uint64(0)}
}

func inet(protocol, port uint32, addr ...byte) *fdinfo.FileEntry {
	var words []uint32
	for b := addr; len(b) >= 4; b = b[4:] {
		words = append(words, binary.NativeEndian.Uint32(b))
	}
	return &fdinfo.FileEntry{Type: fdinfo.FdTypes_INETSK.Enum(), Id: proto.Uint32(1), Isk: &sk_inet.InetSkEntry{
		Id: proto.Uint32(1), Ino: proto.Uint32(1), Family: proto.Uint32(2), Type: proto.Uint32(1), Proto: &protocol,
		State: proto.Uint32(10), SrcPort: &port, DstPort: proto.Uint32(0), Flags: proto.Uint32(0),
		Backlog: proto.Uint32(0), SrcAddr: words, Fown: owner(), Opts: options()}}
}

func unixSocket(kind, state uint32, name string) *fdinfo.FileEntry {
	return &fdinfo.FileEntry{Type: fdinfo.FdTypes_UNIXSK.Enum(), Id: proto.Uint32(1), Usk: &sk_unix.UnixSkEntry{
		Id: proto.Uint32(1), Ino: proto.Uint32(1), Type: &kind, State: &state, Flags: proto.Uint32(0),
		Uflags: proto.Uint32(0), Backlog: proto.Uint32(0), Peer: proto.Uint32(0), Fown: owner(), Opts: options(),
		Name: []byte(name)}}
}

func TestLoadAddresses(t *testing.T) {
	six := append(make([]byte, 15), 1)
	a, err := LoadAddresses(fstest.MapFS{"files.img": image(t, magicFiles, regular(1, "/dev/null"),
		inet(6, 8080, 127, 0, 0, 1), inet(6, 8080, 127, 0, 0, 1), inet(17, 53, 0, 0, 0, 0), inet(6, 443, six...),
		inet(6, 0, 0, 0, 0, 0), inet(6, 7), unixSocket(1, 10, "/run/a\x00"), unixSocket(1, 1, "/run/accepted"),
		unixSocket(2, 7, "/run/datagrams"), unixSocket(1, 10, "\x00abstract"), unixSocket(1, 1, ""))})
	if err != nil {
		t.Fatal(err)
	}
	ports := []string{"tcp 127.0.0.1:8080", "tcp [::1]:443", "tcp port 7", "udp 0.0.0.0:53", "unix @abstract"}
	if !slices.Equal(a.Ports, ports) {
		t.Errorf("ports %q", a.Ports)
	}
	if !slices.Equal(a.Sockets, []string{"/run/a", "/run/datagrams"}) {
		t.Errorf("sockets %q", a.Sockets)
	}
	if a, err := LoadAddresses(fstest.MapFS{}); err != nil || len(a.Ports)+len(a.Sockets) > 0 {
		t.Errorf("without files.img: %v, %v", a, err)
	}
	if _, err := LoadAddresses(fstest.MapFS{"files.img": image(t, magicMM)}); err == nil {
		t.Error("another image is read")
	}
}

// Where TCP sockets listen is read with address and port, whatever else has a port.
func TestLoadListeners(t *testing.T) {
	six := append(make([]byte, 15), 1)
	only := inet(6, 81, make([]byte, 16)...)
	only.Isk.V6Only = proto.Bool(true)
	connected := inet(6, 9, 127, 0, 0, 1)
	connected.Isk.State = proto.Uint32(1)
	all, err := LoadListeners(fstest.MapFS{"files.img": image(t, magicFiles, regular(1, "/dev/null"),
		inet(6, 8080, 127, 0, 0, 1), inet(6, 8080, 127, 0, 0, 1), inet(17, 53, 0, 0, 0, 0), inet(6, 443, six...),
		only, connected, inet(6, 7), unixSocket(1, 10, "/run/a\x00"))})
	if err != nil {
		t.Fatal(err)
	}
	want := []Listener{{netip.MustParseAddrPort("127.0.0.1:8080"), false},
		{netip.MustParseAddrPort("[::1]:443"), false}, {netip.MustParseAddrPort("[::]:81"), true}}
	if !slices.Equal(all, want) {
		t.Errorf("%v instead of %v", all, want)
	}
}

// The driver's sockets have another name in another pid namespace, and all else stays; they are nobody's addresses.
func TestFilesFor(t *testing.T) {
	const there, plain = "\x00cuda-uvmfd-4026531836-77\x00", "\x00cuda-uvmfd"
	dir := func(driver string) fstest.MapFS {
		return fstest.MapFS{"files.img": image(t, magicFiles, regular(1, "/dev/null"), unixSocket(1, 10, driver),
			unixSocket(1, 10, plain), inet(6, 7), unixSocket(1, 10, "/run"+there))}
	}
	b, err := FilesFor(dir(there), 4026532999)
	if err != nil {
		t.Fatal(err)
	}
	want := dir("\x00cuda-uvmfd-4026532999-77\x00")
	if !slices.Equal(b, want["files.img"].Data) {
		t.Errorf("%q instead of %q", b, want["files.img"].Data)
	}
	if a, err := LoadAddresses(dir(there)); err != nil ||
		!slices.Equal(a.Ports, []string{"tcp port 7", "unix @cuda-uvmfd"}) {
		t.Errorf("addresses %q, %v", a.Ports, err)
	}
	whole := dir(there)["files.img"].Data
	for name, fsys := range map[string]fstest.MapFS{"no such socket": {"files.img": image(t, magicFiles,
		unixSocket(1, 10, plain))}, "no files.img": {},
		"another image": {"files.img": image(t, magicMM)}, "cut": {"files.img": {Data: whole[:len(whole)-3]}}} {
		if b, err := FilesFor(fsys, 1); b != nil || err != nil {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}
