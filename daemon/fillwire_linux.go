package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/drm"
	bofill "github.com/gpucr/gpucr-fs/restore/server"
)

// fillSocket is the name, in the store, of the socket that takes what comes with descriptors: fills, and the directories of restores and dumps (handed.go). Its packets are
// each one JSON object, a fillPacket, with the descriptors that it speaks of.
const fillSocket = "fill.sock"

const (
	maxPacket = 128 << 10
	maxFDs    = 128 // of one packet; the kernel takes 253
	// packetPatience bounds the wait for the other side to take a packet, or to go on with a request.
	packetPatience = time.Minute
)

// fillPacket is one packet; one of its fields is set. The client sends begin with the render nodes, then bos with their dma-bufs until they are all there. The
// daemon answers with progress, and at last with done. A connection that begins with hand is none of a fill.
type fillPacket struct {
	Hand     *handPacket   `json:"hand,omitempty"`
	Begin    *fillBegin    `json:"begin,omitempty"`
	BOs      []bofill.BO   `json:"bos,omitempty"`
	Progress *fillProgress `json:"progress,omitempty"`
	Done     *fillDone     `json:"done,omitempty"`
}

type fillBegin struct {
	Checkpoint string   `json:"checkpoint"`
	ID         string   `json:"id"`
	Nodes      []string `json:"nodes"`
	BOs        int      `json:"bos"`

	Staging   int64       `json:"staging"`
	MaxBuffer int64       `json:"max_buffer"`
	Workers   int         `json:"workers"`
	Engine    drm.Kind    `json:"engine"`
	Verify    bofill.Mode `json:"verify"`
}

type fillProgress struct {
	Done  uint64 `json:"done"`
	Total uint64 `json:"total"`
}

type fillDone struct {
	Report bofill.Report `json:"report"`
	Error  *wireError    `json:"error,omitempty"`
	// BO is the index of the BO that the error is about, -1 for none.
	BO int    `json:"bo"`
	Op string `json:"op,omitempty"`
}

// maxFillBOs bounds the BOs of a fill: each is an open file.
const maxFillBOs = 1 << 17

var errPacket = errors.New("it sent what belongs to no fill")

// fillConn is one end of a connection.
type fillConn struct{ *net.UnixConn }

func (c fillConn) send(p fillPacket, files ...*os.File) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if len(b) > maxPacket {
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
	if err := c.SetWriteDeadline(time.Now().Add(packetPatience)); err != nil {
		return err
	}
	_, _, err = c.WriteMsgUnix(b, oob, nil)
	return err
}

// receive takes a packet, io.EOF when the other side is gone. The descriptors are the caller's.
func (c fillConn) receive() (p fillPacket, files []*os.File, err error) {
	b := make([]byte, maxPacket)
	oob := make([]byte, unix.CmsgSpace(4*maxFDs))
	n, oobn, flags, _, err := c.ReadMsgUnix(b, oob)
	if errors.Is(err, unix.ECONNRESET) || err == nil && n == 0 && oobn == 0 {
		err = io.EOF
	}
	if err != nil {
		return p, nil, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return p, nil, err
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
		err = json.Unmarshal(b[:n], &p)
	}
	if err != nil {
		closeFiles(files)
		return fillPacket{}, nil, err
	}
	return p, files, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
