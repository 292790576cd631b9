package criuimg

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/bounded"
)

// Image magics, as in CRIU's magic.h. All images but the inventory start with
// the common magic, then the magic of their type.
const (
	magicCommon    = 0x54564319
	magicInventory = 0x58313116
	magicPstree    = 0x50273030
	magicMM        = 0x57492820
	magicPagemap   = 0x56084025
)

// maxEntry bounds one protobuf entry. The largest is mm-PID, one entry with
// all VMAs of a task: 64 MiB holds about a million of them, and the kernel's
// default limit is 65530.
const maxEntry = 64 << 20

// bufferBytes is read at once: a page map has some ten bytes for each run of pages,
// and through a mount each read is a request.
const bufferBytes = 64 << 10

// ErrCorrupt marks images that cannot be what CRIU wrote.
var ErrCorrupt = errors.New("corrupt criu image")

func corrupt(name, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrCorrupt, name, fmt.Sprintf(format, args...))
}

// reader reads the entries of one image in order.
type reader struct {
	name string
	f    fs.File
	r    *bufio.Reader
}

// openImage opens an image and checks its magic. The caller closes it.
func openImage(fsys fs.FS, name string, magic uint32) (*reader, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	r := &reader{name: name, f: f, r: bufio.NewReaderSize(f, bufferBytes)}
	got, err := r.u32()
	if err == nil && magic != magicInventory {
		if got != magicCommon {
			err = corrupt(name, "starts with %#x instead of the common magic %#x", got, uint32(magicCommon))
		} else {
			got, err = r.u32()
		}
	}
	if err == nil && got != magic {
		err = corrupt(name, "has magic %#x, want %#x", got, magic)
	}
	if err != nil {
		f.Close()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = corrupt(name, "ends within its header")
		}
		return nil, err
	}
	return r, nil
}

func (r *reader) close() { r.f.Close() }

func (r *reader) u32() (uint32, error) {
	var b [4]byte
	if _, err := io.ReadFull(r.r, b[:]); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b[:]), nil
}

// bytes reads the next entry. What it returns holds until the next call. It
// returns io.EOF after the last one.
func (r *reader) bytes() ([]byte, error) {
	n, err := r.u32()
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, corrupt(r.name, "ends within an entry's size")
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", r.name, err)
	}
	if n > maxEntry {
		return nil, corrupt(r.name, "entry of %d bytes, more than %d", n, maxEntry)
	}
	var b []byte
	if int(n) <= r.r.Size() {
		b, err = r.r.Peek(int(n))
		r.r.Discard(len(b))
		if errors.Is(err, io.EOF) {
			err = nil
		}
	} else {
		// No more than there is, so a lying size costs nothing.
		st, serr := r.f.Stat()
		if serr != nil {
			return nil, fmt.Errorf("read %s: %w", r.name, serr)
		}
		b = make([]byte, min(int64(n), st.Size()))
		k := 0
		if k, err = io.ReadFull(r.r, b); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = nil
		}
		b = b[:k]
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", r.name, err)
	}
	if len(b) != int(n) {
		return nil, corrupt(r.name, "ends within an entry: %d of %d bytes", len(b), n)
	}
	return b, nil
}

// next reads the next entry into m. It returns io.EOF after the last one. Fields that another CRIU does not write any
// more, or writes in addition, are none of this package's business: users of a field check whether it makes sense.
func (r *reader) next(m proto.Message) error {
	b, err := r.bytes()
	if err != nil {
		return err
	}
	// One entry at a time is in memory.
	if err := new(bounded.Budget).Unmarshal(proto.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true}, b,
		m); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrCorrupt, r.name, err)
	}
	return nil
}

// one reads the single entry that an image must have.
func (r *reader) one(m proto.Message) error {
	err := r.next(m)
	if errors.Is(err, io.EOF) {
		return corrupt(r.name, "has no entry")
	}
	return err
}
