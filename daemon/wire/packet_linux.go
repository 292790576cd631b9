package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// MaxPacket bounds the object of one packet, in bytes.
	MaxPacket = 128 << 10
	// MaxFDs bounds the descriptors of one packet; the kernel takes 253.
	MaxFDs = 128
	// Timeout bounds the wait for the other side to take a packet, or to go on with a request.
	Timeout = time.Minute
)

// Conn is one end of a connection that carries packets: each one JSON object, with the descriptors that it speaks of.
type Conn struct{ *net.UnixConn }

// DialPackets connects to the descriptors' socket of the store at dir. ErrNoDaemon when none listens.
func DialPackets(ctx context.Context, dir string) (Conn, error) {
	c, err := Descriptors.Dial(ctx, dir)
	return Conn{c}, err
}

// PacketPair returns two connected ends.
func PacketPair() (a, b Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return a, b, err
	}
	for i, c := range []*Conn{&a, &b} {
		f := os.NewFile(uintptr(fds[i]), "packets")
		end, e := net.FileConn(f)
		f.Close()
		c.UnixConn, _ = end.(*net.UnixConn)
		err = errors.Join(err, e)
	}
	if err != nil {
		for _, c := range []Conn{a, b} {
			if c.UnixConn != nil {
				c.Close()
			}
		}
		return Conn{}, Conn{}, err
	}
	return a, b, nil
}

// Send sends a packet.
func (c Conn) Send(packet any, files ...*os.File) error {
	b, err := json.Marshal(packet)
	if err != nil {
		return err
	}
	if len(b) > MaxPacket {
		return fmt.Errorf("a packet of %d bytes is too long", len(b))
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if err := c.SetWriteDeadline(time.Now().Add(Timeout)); err != nil {
		return err
	}
	_, _, err = c.WriteMsgUnix(b, oob, nil)
	return err
}

// Receive takes a packet, io.EOF when the other side is gone. The descriptors are the caller's.
func (c Conn) Receive(packet any) (files []*os.File, err error) {
	b := make([]byte, MaxPacket)
	oob := make([]byte, unix.CmsgSpace(4*MaxFDs))
	n, oobn, flags, _, err := c.ReadMsgUnix(b, oob)
	if errors.Is(err, unix.ECONNRESET) || err == nil && n == 0 && oobn == 0 {
		err = io.EOF
	}
	if err != nil {
		return nil, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, err
	}
	for i := range msgs {
		fds, ferr := unix.ParseUnixRights(&msgs[i])
		err = errors.Join(err, ferr)
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errors.New("a packet was cut off; raise the limit of open files (ulimit -n)")
	}
	if err == nil {
		err = json.Unmarshal(b[:n], packet)
	}
	if err != nil {
		CloseFiles(files)
		return nil, err
	}
	return files, nil
}

// CloseFiles closes what came with a packet.
func CloseFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
