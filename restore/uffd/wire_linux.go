package uffd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/lastread"
)

// kind says what a packet between guardian and provider means.
type kind uint8

const (
	// From the guardian.

	kindHello   kind = iota + 1 // with the slots' descriptor, tail: the keeper's pid; the provider is accepted
	kindMemory                  // id; with a userfaultfd and, unless forked, a pidfd: keep them, see heldFDs
	kindTask                    // with a pidfd: the same
	kindCRIU                    // with a pidfd of CRIU, or without when it waits for no task any more: see heldFDs
	kindLeft                    // id: its userfaultfd is no longer needed
	kindDemand                  // a range, flag: again
	kindSweep                   // ranges
	kindRefetch                 // ranges
	kindDrain                   // id: answer when all is delivered
	kindAck                     // id: the delivery is done with
	kindLog                     // id: level; tail: text
	kindReport                  // tail: Report as JSON
	kindDone                    // tail: JSON of outcome; the guardian ends

	// From the provider.

	kindListen    // with the socket for CRIU and its directory, id: its inode; before kindBegin, or not at all
	kindBegin     // the setup is there
	kindTake      // id, ranges and for each its page of the slots, or zeroPage
	kindFail      // id, a range; tail: the error
	kindDelivered // id, a range
	kindDrained   // id
	kindStop      // nobody will restore: end, unless CRIU is there
	kindAbandon   // the restore is given up: end the tasks

	kindEnd
)

// packet is one message. What its fields mean depends on its kind.
type packet struct {
	kind   kind
	flag   bool
	id     uint64
	r      prefetch.Range
	ranges []prefetch.Range
	pages  []uint32 // none, or one for each of ranges
	tail   []byte
	fds    []int // received: the receiver closes them
}

// bytes is how much the packet's ranges are all in all.
func (p *packet) bytes() (n int64) {
	for _, r := range p.ranges {
		n += r.Len
	}
	return n
}

const (
	headSize  = 1 + 1 + 8 + rangeSize + 4
	rangeSize = 4 + 8 + 8
	pageBytes = 4 // of a page's number
	// zeroPage stands for contents that are zero.
	zeroPage = ^uint32(0)
	// maxRanges and maxTail keep packets well below the socket's buffer.
	maxRanges = 2000
	maxTail   = 32 << 10
	maxPacket = headSize + maxRanges*(rangeSize+pageBytes) + maxTail
	maxFDs    = 4
)

func appendRange(b []byte, r prefetch.Range) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(r.File))
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Off))
	return binary.LittleEndian.AppendUint64(b, uint64(r.Len))
}

func getRange(b []byte) prefetch.Range {
	return prefetch.Range{
		File: int(int32(binary.LittleEndian.Uint32(b))),
		Off:  int64(binary.LittleEndian.Uint64(b[4:])),
		Len:  int64(binary.LittleEndian.Uint64(b[12:])),
	}
}

func (p *packet) encode(b []byte) []byte {
	var flags byte
	if p.flag {
		flags |= 1
	}
	if len(p.pages) > 0 {
		flags |= 2
	}
	b = append(b, byte(p.kind), flags)
	b = binary.LittleEndian.AppendUint64(b, p.id)
	b = appendRange(b, p.r)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(p.ranges)))
	for _, r := range p.ranges {
		b = appendRange(b, r)
	}
	for _, n := range p.pages {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return append(b, p.tail...)
}

// rights are the packet's descriptors as they are sent.
func (p *packet) rights() []byte {
	if len(p.fds) == 0 {
		return nil
	}
	return unix.UnixRights(p.fds...)
}

func decode(b []byte) (packet, error) {
	if len(b) < headSize {
		return packet{}, fmt.Errorf("packet of %d bytes", len(b))
	}
	p := packet{kind: kind(b[0]), flag: b[1]&1 != 0, id: binary.LittleEndian.Uint64(b[2:]), r: getRange(b[10:])}
	n, each := int(binary.LittleEndian.Uint32(b[headSize-4:])), rangeSize
	paged := b[1]&2 != 0
	if paged {
		each += pageBytes
	}
	b = b[headSize:]
	if p.kind == 0 || p.kind >= kindEnd || n > maxRanges || len(b) < n*each {
		return packet{}, fmt.Errorf("packet of kind %d with %d ranges in %d bytes", p.kind, n, len(b))
	}
	for range n {
		p.ranges = append(p.ranges, getRange(b))
		b = b[rangeSize:]
	}
	for range n {
		if !paged {
			break
		}
		p.pages = append(p.pages, binary.LittleEndian.Uint32(b))
		b = b[pageBytes:]
	}
	p.tail = append([]byte(nil), b...)
	return p, nil
}

// wire is one end of the connection between guardian and provider. Packets are
// sent whole (SOCK_SEQPACKET), by any goroutine; one goroutine receives.
type wire struct {
	c        *net.UnixConn
	buf, oob []byte // for what is received
	bare     bool   // no descriptors come any more: nobody looks for them, which takes as long as reading

	mu  sync.Mutex
	out []byte
}

// newWire takes over a connected SOCK_SEQPACKET socket.
func newWire(f *os.File) (*wire, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("use the connection to the guardian: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("the connection to the guardian is no unix socket")
	}
	return &wire{c: u, buf: make([]byte, maxPacket), oob: make([]byte, unix.CmsgSpace(maxFDs*4))}, nil
}

func (w *wire) close() { w.c.Close() }

// send sends a packet. When it cannot for long, the connection ends: the other end would not know what it lacks.
func (w *wire) send(p *packet) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out = p.encode(w.out[:0])
	err := patiently(func() error {
		_, _, err := w.c.WriteMsgUnix(w.out, p.rights(), nil)
		return err
	})
	if prefetch.IsLack(err) {
		w.close()
	}
	return err
}

// sendNow sends a packet unless it would have to wait: for room, or for another
// sender.
func (w *wire) sendNow(p *packet) error {
	raw, err := w.c.SyscallConn()
	if err != nil {
		return err
	}
	b, oob := p.encode(nil), p.rights()
	cerr := raw.Control(func(fd uintptr) {
		err = unix.Sendmsg(int(fd), b, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
	return errors.Join(cerr, err)
}

// sendRanges sends any number of ranges in packets of one kind.
func (w *wire) sendRanges(k kind, ranges []prefetch.Range) error {
	for len(ranges) > 0 {
		n := min(len(ranges), maxRanges)
		if err := w.send(&packet{kind: k, ranges: ranges[:n]}); err != nil {
			return err
		}
		ranges = ranges[n:]
	}
	return nil
}

// receive returns the next packet: io.EOF when the other end is gone. An error for which prefetch.IsLack holds says
// that there was no room for a packet's descriptors for long.
func (w *wire) receive() (packet, error) {
	// A packet that is read while there is no room for its descriptors has lost them. So they are taken first.
	if w.bare {
		return w.take(nil)
	}
	var fds []int
	if err := patiently(func() (err error) { fds, err = w.peekFDs(); return err }); err != nil {
		return packet{}, err
	}
	return w.take(fds)
}

// take takes the next packet, whose descriptors are there.
func (w *wire) take(fds []int) (packet, error) {
	n, _, _, _, err := w.c.ReadMsgUnix(w.buf, nil)
	if errors.Is(err, unix.ECONNRESET) {
		n, _, _, _, err = w.c.ReadMsgUnix(w.buf, nil) // killed since, see peekControl
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		closeAll(fds)
		return packet{}, err
	}
	p, err := decode(w.buf[:n])
	if err != nil {
		closeAll(fds)
		return packet{}, err
	}
	p.fds = fds
	return p, nil
}

// peekFDs returns the descriptors of the next packet, which stays where it is.
func (w *wire) peekFDs() (fds []int, err error) {
	msgs, err := peekControl(w.c, w.oob)
	for i := range msgs {
		if got, e := unix.ParseUnixRights(&msgs[i]); e == nil {
			fds = append(fds, got...)
		}
	}
	if err != nil {
		closeAll(fds)
		return nil, err
	}
	return fds, nil
}

// peekControl returns what comes with the next message, which stays where it is; io.EOF when the other end is gone.
// With an error for want of room some of the descriptors may be among it.
func peekControl(c *net.UnixConn, oob []byte) ([]unix.SocketControlMessage, error) {
	var err error
	n, on, flags, head := 0, 0, 0, make([]byte, 1)
	peek := func(fd uintptr) bool {
		n, on, flags, _, err = unix.Recvmsg(int(fd), head, oob, unix.MSG_PEEK|unix.MSG_CMSG_CLOEXEC)
		if err == unix.ECONNRESET {
			// The other end was killed before it had read everything. The kernel
			// says so first, once; what had been sent to here is still to come.
			n, on, flags, _, err = unix.Recvmsg(int(fd), head, oob, unix.MSG_PEEK|unix.MSG_CMSG_CLOEXEC)
		}
		return err != unix.EAGAIN
	}
	if rerr := lastread.Do(c, peek); rerr != nil {
		return nil, rerr // err is EAGAIN then, which is no lack
	}
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	var msgs []unix.SocketControlMessage
	if on > 0 {
		msgs, err = unix.ParseSocketControlMessage(oob[:on])
	}
	if flags&unix.MSG_CTRUNC != 0 {
		err = fmt.Errorf("there is no room for descriptors (RLIMIT_NOFILE): %w", unix.EMFILE)
	}
	return msgs, err
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// socketPair returns two connected ends.
func socketPair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a connection for the guardian: %w", err)
	}
	for _, fd := range fds {
		// As many demands as there are threads may be on their way.
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20)
	}
	return os.NewFile(uintptr(fds[0]), "guardian"), os.NewFile(uintptr(fds[1]), "provider"), nil
}
