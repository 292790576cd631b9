package object

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// Version of the objects' format.
const Version = 1

// TargetSize is how many bytes of slots a pack object gets: a chunk that would go beyond it goes into the next one.
const TargetSize = 64 << 20

const (
	trailerMagic = 0x4f4b5047 // "GPKO"
	trailerSize  = 32
	// MaxPack bounds a pack object, its list included, in bytes.
	MaxPack = TargetSize + maxList
	// maxList bounds the list of a pack object in bytes: slots of one page each take 54 bytes there.
	maxList = 2 << 20
	// here is the number of the pack in its own list.
	here = 1
)

// ErrCorrupt: an object holds something else than what was put there. It wraps pack.ErrCorrupt.
var ErrCorrupt = fmt.Errorf("object: %w", pack.ErrCorrupt)

// Packer builds a pack object in memory. The zero value is ready.
type Packer struct {
	Coder  *cipher.Coder // encrypts slots, each object with a key of its own, and the table; nil: nothing is
	salt   cipher.Salt
	slots  []byte
	chunks []pack.Chunk
}

// Add puts a chunk into the object: slot is its slot as it lies in a pack, padding included and not encrypted, at says
// the rest of it. It gives the location in the object, in pack 1; full: it does not fit any more, and is not in it.
func (p *Packer) Add(id chunk.ID, at pack.Loc, slot []byte) (loc pack.Loc, full bool) {
	if int64(len(slot)) != at.Slot() {
		panic("object: the slot has another length than its location says")
	}
	if len(p.slots) > 0 && len(p.slots)+len(slot) > TargetSize {
		return pack.Loc{}, true
	}
	if p.slots == nil { // as long as it can become: to move what is there again and again was half of an upload's work
		p.slots = make([]byte, 0, TargetSize+maxList)
	}
	loc = at
	loc.Pack, loc.Page = here, uint32(len(p.slots)/chunk.PageSize)
	if p.Coder != nil {
		if len(p.slots) == 0 {
			p.salt = p.Coder.NewSalt()
		}
		buf := p.Coder.Buffer(len(slot) + cipher.TagSize)
		defer p.Coder.Done(buf)
		buf, loc.Seal = p.Coder.EncryptSlot(buf, p.salt, loc.Page, slot[:at.Stored])
		slot = buf[:len(slot)]
		clear(slot[at.Stored:])
		loc.CRC = crc32c.Checksum(slot)
	}
	p.slots = append(p.slots, slot...)
	p.chunks = append(p.chunks, pack.Chunk{ID: id, Loc: loc})
	return loc, false
}

// Len gives the bytes of the slots so far.
func (p *Packer) Len() int { return len(p.slots) }

// Chunks gives what was added, in the order of the object.
func (p *Packer) Chunks() []pack.Chunk { return p.chunks }

// Finish gives the object. Nothing can be added any more.
func (p *Packer) Finish(store [16]byte) ([]byte, error) {
	list, err := pack.EncodeFrames(pack.Header{Version: Version, Pack: here, Store: store}, p.chunks, nil)
	if err != nil {
		return nil, err
	}
	if p.Coder != nil {
		list = p.Coder.SealBytes(cipher.ForTable, list)
	}
	at := len(p.slots)
	b := append(p.slots, list...)
	b = binary.LittleEndian.AppendUint32(b, trailerMagic)
	b = binary.LittleEndian.AppendUint32(b, Version)
	b = binary.LittleEndian.AppendUint64(b, uint64(at))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(list)))
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint32(b, crc32c.Checksum(b[len(b)-trailerSize+4:]))
	p.slots = b[:at] // it may have been moved: the next object has the room
	return b, nil
}

// Reset makes p ready for another object. What Finish and Chunks gave before is written over.
func (p *Packer) Reset() { p.slots, p.chunks = p.slots[:0], p.chunks[:0] }

// listGuess is how much of the end of an object is read at once: with chunks of average size its list is in it.
const listGuess = 64 << 10

// ReadPack calls fn for each chunk that a pack object of size bytes says it has, in the order of the object. It reads
// the end of the object once or twice. Its error wraps pack.ErrVersion when a later version of the program wrote the
// object, pack.ErrCorrupt when it is not one of this store or damaged. c decrypts the table; nil: it is not encrypted.
func ReadPack(r io.ReaderAt, size int64, store [16]byte, c *cipher.Coder, fn func(pack.Chunk) error) error {
	if size < trailerSize || size > MaxPack {
		return fmt.Errorf("%w: %d bytes", ErrCorrupt, size)
	}
	tail, err := readTail(r, size, min(size, listGuess))
	if err != nil {
		return err
	}
	at, length, err := parseTrailer(tail[len(tail)-trailerSize:], size)
	if err != nil {
		return err
	}
	if need := length + trailerSize; need > int64(len(tail)) {
		if tail, err = readTail(r, size, need); err != nil {
			return err
		}
	}
	list := tail[int64(len(tail))-trailerSize-length : len(tail)-trailerSize]
	if c != nil {
		if list, err = c.OpenBytes(cipher.ForTable, list); err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
	}
	var end int64
	headed := false
	err = pack.DecodeFrames(bytes.NewReader(list), func(rec pack.Record) error {
		switch {
		case rec.Header != nil && !headed:
			headed = true
			return checkHeader(rec.Header, here, store)
		case rec.Chunk == nil || !headed:
			return fmt.Errorf("%w: an unexpected record", ErrCorrupt)
		}
		l := rec.Chunk.Loc
		if l.Pack != here || l.Offset() < end || l.Offset()+l.Slot() > at {
			return fmt.Errorf("%w: a slot of %d bytes at %d of %d, after one that ends at %d", ErrCorrupt, l.Slot(),
				l.Offset(), at, end)
		}
		end = l.Offset() + l.Slot()
		return fn(*rec.Chunk)
	})
	if err == nil && !headed {
		err = fmt.Errorf("%w: no header", ErrCorrupt)
	}
	return err
}

func readTail(r io.ReaderAt, size, n int64) ([]byte, error) {
	b := make([]byte, n)
	k, err := r.ReadAt(b, size-n)
	if int64(k) == n {
		return b, nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: cut short", ErrCorrupt)
	}
	return nil, err
}

func parseTrailer(b []byte, size int64) (at, length int64, err error) {
	u32 := func(i int) uint32 { return binary.LittleEndian.Uint32(b[i:]) }
	if u32(0) != trailerMagic || u32(28) != crc32c.Checksum(b[:28]) {
		return 0, 0, fmt.Errorf("%w: no trailer", ErrCorrupt)
	}
	if v := u32(4); v != Version {
		return 0, 0, fmt.Errorf("pack object: %w (format %d)", pack.ErrVersion, v)
	}
	a, n := binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	if a > uint64(size) || n > maxList || a+n+trailerSize != uint64(size) || a%chunk.PageSize != 0 {
		return 0, 0, fmt.Errorf("%w: a list of %d bytes at %d of %d", ErrCorrupt, n, a, size)
	}
	return int64(a), int64(n), nil
}

func checkHeader(h *pack.Header, number uint32, store [16]byte) error {
	switch {
	case h.Version != Version:
		return fmt.Errorf("object: %w (format %d)", pack.ErrVersion, h.Version)
	case h.Store != store:
		return fmt.Errorf("%w: it belongs to another store", ErrCorrupt)
	case h.Pack != number:
		return fmt.Errorf("%w: it is something else", ErrCorrupt)
	}
	return nil
}
