package pack

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/cipher"
)

// Version of the journal format.
const Version = 1

// Loc says where a stored chunk lies and how to read it.
type Loc struct {
	Pack   uint32      // number of the pack
	Page   uint32      // offset in the pack in units of 4 KiB
	Stored uint32      // bytes, before padding
	Raw    uint32      // bytes of content
	CRC    uint32      // CRC-32C of the padded slot
	Codec  chunk.Codec // how the content is encoded
	Seal   cipher.Seal // zero: the slot is not encrypted
}

// Offset is where the slot begins, in bytes.
func (l Loc) Offset() int64 { return int64(l.Page) * chunk.PageSize }

// Distant says whether the pack lies in a bucket.
func (l Loc) Distant() bool { return l.Pack >= FirstDistant }

// Slot is the length of the slot, in bytes.
func (l Loc) Slot() int64 { return padded(int64(l.Stored)) }

func padded(n int64) int64 { return (n + chunk.PageSize - 1) &^ (chunk.PageSize - 1) }

// LocSize is the length of an encoded Loc, SealedLocSize that of one whose slot is encrypted.
const (
	LocSize       = 21
	SealedLocSize = LocSize + cipher.SaltSize + cipher.TagSize
)

// SizeOfLoc gives the length of the encoded locations of a store that encrypts with c, of which nil stands for none.
func SizeOfLoc(c *cipher.Coder) int {
	if c == nil {
		return LocSize
	}
	return SealedLocSize
}

// AppendLoc encodes l.
func AppendLoc(b []byte, l Loc) []byte {
	b = binary.LittleEndian.AppendUint32(b, l.Pack)
	b = binary.LittleEndian.AppendUint32(b, l.Page)
	b = binary.LittleEndian.AppendUint32(b, l.Stored)
	b = binary.LittleEndian.AppendUint32(b, l.Raw)
	b = binary.LittleEndian.AppendUint32(b, l.CRC)
	b = append(b, byte(l.Codec))
	if l.Seal.Plain() {
		return b
	}
	return append(append(b, l.Seal.Salt[:]...), l.Seal.Tag[:]...)
}

// DecodeLoc reads what AppendLoc wrote.
func DecodeLoc(b []byte) (Loc, error) {
	if len(b) != LocSize && len(b) != SealedLocSize {
		return Loc{}, fmt.Errorf("location has %d bytes, not %d", len(b), LocSize)
	}
	l := Loc{
		Pack: binary.LittleEndian.Uint32(b), Page: binary.LittleEndian.Uint32(b[4:]),
		Stored: binary.LittleEndian.Uint32(b[8:]),
		Raw:    binary.LittleEndian.Uint32(b[12:]), CRC: binary.LittleEndian.Uint32(b[16:]), Codec: chunk.Codec(b[20]),
	}
	if len(b) == SealedLocSize {
		copy(l.Seal.Salt[:], b[LocSize:])
		copy(l.Seal.Tag[:], b[LocSize+cipher.SaltSize:])
	}
	if err := l.check(); err != nil {
		return Loc{}, err
	}
	return l, nil
}

// Limits of locations. A reader may allocate what a decoded location says.
const (
	// MaxSize bounds a pack in bytes.
	MaxSize = 1 << 40
	// MaxNumber is the largest number of a pack: names have eight digits.
	MaxNumber = 99999999
	// FirstDistant is the smallest number of a distant pack: one that lies in a bucket, and that no Set has.
	FirstDistant = 50000000
	// maxChunk bounds a chunk in bytes, stored and decoded.
	maxChunk = 16 << 20
)

var errLoc = errors.New("impossible location")

// check refuses what no Append has given: content is stored as it is, or shorter.
func (l Loc) check() error {
	switch {
	case l.Pack == 0 || l.Pack > MaxNumber || l.Offset() > MaxSize:
		return fmt.Errorf("%w: page %d of pack %d", errLoc, l.Page, l.Pack)
	case l.Raw == 0 || l.Raw > maxChunk || l.Stored == 0 || l.Stored > l.Raw ||
		l.Codec == chunk.Raw && l.Stored != l.Raw:
		return fmt.Errorf("%w: %d bytes stored as %d, %v", errLoc, l.Raw, l.Stored, l.Codec)
	}
	return nil
}

// Chunk is the record of a stored chunk.
type Chunk struct {
	ID  chunk.ID
	Loc Loc
}

// KV is the record of one metadata key. Of several records of one key the highest Seq counts; Delete ones carry no
// value.
type KV struct {
	Seq    uint64
	Key    string
	Value  []byte
	Delete bool
}

// MaxSeq is the highest sequence that counts. No store comes there: a record with more was forged.
const MaxSeq = 1 << 62

// Header is the first record of a journal.
type Header struct {
	Version uint32
	Pack    uint32
	Store   [16]byte // the store's identity: a journal of another store is refused
}

// Record is one record of a journal; exactly one field is set.
type Record struct {
	Header *Header
	Chunk  *Chunk
	Dead   *Chunk // a chunk whose slot was given back
	KV     *KV
}

const (
	recHeader = 1
	recChunk  = 2
	recDead   = 3
	recPut    = 4
	recDelete = 5
	// The slot is encrypted.
	recSealedChunk = 6
	recSealedDead  = 7
)

func appendHeader(b []byte, h Header) []byte {
	b = append(b, recHeader)
	b = binary.LittleEndian.AppendUint32(b, h.Version)
	b = binary.LittleEndian.AppendUint32(b, h.Pack)
	return append(b, h.Store[:]...)
}

func appendChunk(b []byte, kind byte, c Chunk) []byte {
	if !c.Loc.Seal.Plain() {
		kind += recSealedChunk - recChunk
	}
	b = append(b, kind)
	b = append(b, c.ID[:]...)
	return AppendLoc(b, c.Loc)
}

func appendKV(b []byte, kv KV) []byte {
	kind := byte(recPut)
	if kv.Delete {
		kind = recDelete
	}
	b = append(b, kind)
	b = binary.AppendUvarint(b, kv.Seq)
	b = binary.AppendUvarint(b, uint64(len(kv.Key)))
	b = append(b, kv.Key...)
	if !kv.Delete {
		b = binary.AppendUvarint(b, uint64(len(kv.Value)))
		b = append(b, kv.Value...)
	}
	return b
}

var errRecord = errors.New("malformed record")

// decodeRecords calls fn for every record of a frame's payload. Slices in records alias payload.
func decodeRecords(payload []byte, fn func(Record) error) error {
	d := decoder{payload}
	for len(d.b) > 0 {
		var r Record
		switch kind := d.take(1)[0]; kind {
		case recHeader:
			if len(d.b) < 24 {
				return errRecord
			}
			h := &Header{Version: binary.LittleEndian.Uint32(d.take(4)), Pack: binary.LittleEndian.Uint32(d.take(4))}
			copy(h.Store[:], d.take(16))
			r.Header = h
		case recChunk, recDead, recSealedChunk, recSealedDead:
			size := LocSize
			if kind >= recSealedChunk {
				kind, size = kind-(recSealedChunk-recChunk), SealedLocSize
			}
			if len(d.b) < chunk.IDSize+size {
				return errRecord
			}
			c := &Chunk{ID: chunk.ID(d.take(chunk.IDSize))}
			loc, err := DecodeLoc(d.take(size))
			if err != nil {
				return err
			}
			c.Loc = loc
			if kind == recChunk {
				r.Chunk = c
			} else {
				r.Dead = c
			}
		case recPut, recDelete:
			kv := &KV{Delete: kind == recDelete}
			var key []byte
			var ok bool
			if kv.Seq, ok = d.uvarint(); !ok || kv.Seq > MaxSeq {
				return errRecord
			}
			if key, ok = d.bytes(); !ok {
				return errRecord
			}
			kv.Key = string(key)
			if !kv.Delete {
				if kv.Value, ok = d.bytes(); !ok {
					return errRecord
				}
			}
			r.KV = kv
		default:
			return fmt.Errorf("%w: kind %d", errRecord, kind)
		}
		if err := fn(r); err != nil {
			return err
		}
	}
	return nil
}

// decoder takes fields off the front of b.
type decoder struct{ b []byte }

func (d *decoder) take(n int) []byte {
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) uvarint() (uint64, bool) {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		return 0, false
	}
	d.b = d.b[n:]
	return v, true
}

func (d *decoder) bytes() ([]byte, bool) {
	n, ok := d.uvarint()
	if !ok || n > uint64(len(d.b)) {
		return nil, false
	}
	return d.take(int(n)), true
}
