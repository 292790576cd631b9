package cipher

import (
	"bytes"
	aead "crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// A sealed file is a salt, and then parts of partSize bytes, each with its tag; the last one is shorter, and may be
// empty. The nonce of a part is its number, with the highest bit set in the last: nothing can be cut off.
const (
	partSize   = 64 << 10
	sealedPart = partSize + TagSize
	lastPart   = 1 << 63
)

// SealedSize gives how long a sealed file of n bytes is.
func SealedSize(n int64) int64 { return SaltSize + n + (n/partSize+1)*TagSize }

// plainSize undoes SealedSize.
func plainSize(sealed int64) (int64, error) {
	n := sealed - SaltSize
	plain := n - (n/sealedPart+1)*TagSize
	if n < TagSize || plain < 0 || SealedSize(plain) != sealed {
		return 0, fmt.Errorf("%w: no sealed file has %d bytes", ErrOpen, sealed)
	}
	return plain, nil
}

// Writer seals what is written to it for a purpose. Close ends it and does not close w.
func (c *Coder) Writer(w io.Writer, purpose string) io.WriteCloser {
	salt := c.NewSalt()
	return &writer{c: c, w: w, salt: salt, key: c.key(ofRecords, purpose, salt), part: make([]byte, 0, partSize)}
}

type writer struct {
	c     *Coder
	w     io.Writer
	salt  Salt
	key   aead.AEAD
	part  []byte
	out   []byte
	n     uint64 // number of the part
	begun bool
	err   error
}

func (w *writer) Write(p []byte) (n int, err error) {
	for len(p) > 0 && w.err == nil {
		k := min(len(p), partSize-len(w.part))
		w.part = append(w.part, p[:k]...)
		p, n = p[k:], n+k
		if len(w.part) == partSize {
			w.flush(w.n)
			w.n++
		}
	}
	return n, w.err
}

func (w *writer) flush(nonceNumber uint64) {
	w.out = w.out[:0]
	if !w.begun {
		w.out, w.begun = append(w.out, w.salt[:]...), true
	}
	w.c.used(w.salt, nonceNumber, w.part)
	w.out = w.key.Seal(w.out, nonce(nonceNumber), w.part, nil)
	w.part = w.part[:0]
	_, w.err = w.w.Write(w.out)
}

func (w *writer) Close() error {
	if w.err == nil {
		w.flush(w.n | lastPart)
	}
	err := w.err
	w.err = errors.Join(err, io.ErrClosedPipe)
	return err
}

// SealBytes gives a sealed file of b.
func (c *Coder) SealBytes(purpose string, b []byte) []byte {
	out := bytes.NewBuffer(make([]byte, 0, SealedSize(int64(len(b)))))
	w := c.Writer(out, purpose)
	w.Write(b)
	w.Close()
	return out.Bytes()
}

// OpenBytes undoes SealBytes.
func (c *Coder) OpenBytes(purpose string, b []byte) ([]byte, error) {
	return io.ReadAll(c.Reader(bytes.NewReader(b), purpose))
}

// Reader gives what was sealed for a purpose, from its beginning. What was altered or cut off is ErrOpen.
func (c *Coder) Reader(r io.Reader, purpose string) io.Reader {
	return &reader{c: c, r: r, purpose: purpose}
}

type reader struct {
	c       *Coder
	r       io.Reader
	purpose string
	key     aead.AEAD
	buf     []byte // sealed parts: one, and the first byte of the next
	have    int
	out     []byte // has the opened part
	plain   []byte // what of it nobody has read
	n       uint64
	err     error
}

func (r *reader) Read(p []byte) (int, error) {
	for len(r.plain) == 0 {
		if r.err == nil {
			r.next()
		}
		if len(r.plain) == 0 && r.err != nil {
			return 0, r.err
		}
	}
	n := copy(p, r.plain)
	r.plain = r.plain[n:]
	return n, nil
}

// next opens the next part. That one is the last shows when nothing comes behind it.
func (r *reader) next() {
	if r.key == nil {
		var salt Salt
		if _, err := io.ReadFull(r.r, salt[:]); err != nil {
			r.err = cutShort(err)
			return
		}
		r.key = r.c.key(ofRecords, r.purpose, salt)
		r.buf, r.out = make([]byte, sealedPart+1), make([]byte, partSize)
	}
	n, err := io.ReadFull(r.r, r.buf[r.have:])
	r.have += n
	number, part := r.n, r.buf[:min(r.have, sealedPart)]
	switch {
	case err == nil:
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		number |= lastPart
		r.err = io.EOF
	default:
		r.err = err
		return
	}
	if r.plain, err = openInto(r.out, r.key, nonce(number), part); err != nil {
		r.plain, r.err = nil, err
		return
	}
	r.n++
	r.buf[0], r.have = r.buf[sealedPart], 1
}

func cutShort(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrOpen
	}
	return err
}

// File is a sealed file that is read in parts. It is safe for concurrent use.
type File struct {
	r    io.ReaderAt
	size int64
	key  aead.AEAD
}

// atOnce is how many parts of a file are read at once.
const atOnce = 8

// sealedParts are buffers of atOnce sealed parts.
var sealedParts = sync.Pool{New: func() any { return new([atOnce * sealedPart]byte) }}

// OpenFile opens a sealed file of so many bytes. ErrOpen.
func (c *Coder) OpenFile(r io.ReaderAt, sealed int64, purpose string) (*File, error) {
	size, err := plainSize(sealed)
	if err != nil {
		return nil, err
	}
	var salt Salt
	if n, err := r.ReadAt(salt[:], 0); n < len(salt) {
		return nil, cutShort(err)
	}
	f := &File{r: r, size: size, key: c.key(ofRecords, purpose, salt)}
	last := size / partSize
	_, err = f.readParts(make([]byte, size-last*partSize), last*partSize, last, last+1) // nothing was cut off
	return f, err
}

// Size gives the bytes of what was sealed.
func (f *File) Size() int64 { return f.size }

// ReadAt is of io.ReaderAt.
func (f *File) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, errors.New("read before the beginning")
	}
	for n < len(p) && off < f.size {
		first := off / partSize
		end := min((off+int64(len(p)-n)-1)/partSize, f.size/partSize) + 1
		k, err := f.readParts(p[n:], off, first, min(end, first+atOnce))
		n, off = n+k, off+int64(k)
		if err != nil {
			return n, err
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// readParts reads the file from off on into p, as much as there is in the parts from first to end. What is wanted of a
// whole part is decrypted to where it is wanted.
func (f *File) readParts(p []byte, off, first, end int64) (n int, err error) {
	buf := sealedParts.Get().(*[atOnce * sealedPart]byte)
	defer sealedParts.Put(buf)
	sealed := buf[:min((end-first)*sealedPart, SealedSize(f.size)-SaltSize-first*sealedPart)]
	if k, err := f.r.ReadAt(sealed, SaltSize+first*sealedPart); k < len(sealed) {
		return 0, cutShort(err)
	}
	for i := first; i < end; i++ {
		part, number := sealed[:min(sealedPart, len(sealed))], uint64(i)
		sealed = sealed[len(part):]
		if i == f.size/partSize {
			number |= lastPart
		}
		length, skip := len(part)-TagSize, int(off-i*partSize)
		if skip == 0 && len(p)-n >= length {
			if _, err := openInto(p[n:], f.key, nonce(number), part); err != nil {
				return n, err
			}
			n, off = n+length, off+int64(length)
			continue
		}
		plain, err := openInto(part, f.key, nonce(number), part)
		if err != nil {
			return n, err
		}
		k := copy(p[n:], plain[skip:])
		n, off = n+k, off+int64(k)
	}
	return n, nil
}

// Purposes of sealed records and files.
const (
	ForCheck   = "check"
	ForJournal = "journal"
	ForHotSet  = "hot set"
	ForTable   = "table of a pack object"
	ForList    = "list object"
	ForRoot    = "root object"
	ForProfile = "profile object"
	ForIndex   = "index "
)

// ForPack is the purpose of what the journal of a pack holds.
func ForPack(n uint32) string {
	return ForJournal + string(binary.BigEndian.AppendUint32([]byte{' '}, n))
}
