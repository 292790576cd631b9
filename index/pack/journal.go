package pack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/storage"
)

const (
	frameMagic  = 0x464a5047 // "GPJF"
	frameHeader = 12
	// maxFrame bounds a frame's payload, so that a reader needs no more memory than this.
	maxFrame = 16 << 20
	// frameTarget is where a writer begins a new frame.
	frameTarget = 4 << 20
	// MaxKey and MaxValue bound a metadata key and its value in bytes: behind whatever is in a frame, there is room for
	// one.
	MaxKey   = 4 << 10
	MaxValue = 8 << 20
)

// A frame that is not full takes one more record, whatever it is.
const _ = uint(maxFrame - frameTarget - MaxKey - MaxValue - 128 - cipher.Overhead)

// ErrTooLarge: a key or value is longer than a frame holds.
var ErrTooLarge = errors.New("larger than a journal can hold")

func checkKVs(kvs []KV) error {
	for _, kv := range kvs {
		if len(kv.Key) > MaxKey || len(kv.Value) > MaxValue {
			return fmt.Errorf("key %.60q: %d bytes: %w", kv.Key, len(kv.Value), ErrTooLarge)
		}
	}
	return nil
}

// Damage is a stretch of a journal that holds no valid frame.
type Damage struct {
	Off, Len int64
	Text     string
	Locked   bool // a frame whose sum is right begins it, which does not decrypt
}

// frameWriter collects records into frames.
type frameWriter struct {
	out   []byte
	start int           // of the frame being built
	coder *cipher.Coder // nil: payloads are not encrypted
	why   string        // what for they are
}

func (w *frameWriter) begin() {
	w.start = len(w.out)
	w.out = append(w.out, make([]byte, frameHeader)...)
}

func (w *frameWriter) end() {
	payload := len(w.out) - w.start - frameHeader
	if payload == 0 {
		w.out = w.out[:w.start]
		return
	}
	if w.coder != nil {
		sealed := w.coder.Seal(w.why, w.out[w.start+frameHeader:])
		w.out = append(w.out[:w.start+frameHeader], sealed...)
		payload = len(sealed)
	}
	h := w.out[w.start:]
	binary.LittleEndian.PutUint32(h, frameMagic)
	binary.LittleEndian.PutUint32(h[4:], uint32(payload))
	binary.LittleEndian.PutUint32(h[8:], frameCRC(h[4:8], h[frameHeader:]))
}

func (w *frameWriter) record(b []byte) []byte {
	w.out = b
	if len(w.out)-w.start >= frameTarget {
		w.end()
		w.begin()
	}
	return w.out
}

func frameCRC(length, payload []byte) uint32 {
	return crc32c.Update(crc32c.Checksum(length), payload)
}

// encode gives the frames for records of the journal of pack n, in order.
func (s *Set) encode(n uint32, h *Header, chunks, dead []Chunk, kvs []KV) []byte {
	return encodeFrames(frameWriter{coder: s.o.Coder, why: cipher.ForPack(n)}, h, chunks, dead, kvs)
}

// encodeFrames gives the frames for records, in order.
func encodeFrames(w frameWriter, h *Header, chunks, dead []Chunk, kvs []KV) []byte {
	w.begin()
	if h != nil {
		w.record(appendHeader(w.out, *h))
	}
	for _, c := range chunks {
		w.record(appendChunk(w.out, recChunk, c))
	}
	for _, c := range dead {
		w.record(appendChunk(w.out, recDead, c))
	}
	for _, kv := range kvs {
		w.record(appendKV(w.out, kv))
	}
	w.end()
	return w.out
}

// EncodeFrames gives frames for what lies elsewhere than in a journal of this store: a header, chunks, keys with their
// values, in this order. ErrTooLarge for a key or value that no frame holds.
func EncodeFrames(h Header, chunks []Chunk, kvs []KV) ([]byte, error) {
	if err := checkKVs(kvs); err != nil {
		return nil, err
	}
	return encodeFrames(frameWriter{}, &h, chunks, nil, kvs), nil
}

// DecodeFrames calls fn for every record of what EncodeFrames gave. Whatever is not a whole frame is an error, wrapping
// ErrCorrupt: unlike in a journal, nothing is left of a crash there. Slices in records are valid during the call only.
func DecodeFrames(r io.Reader, fn func(Record) error) error {
	var h [frameHeader]byte
	var buf bytes.Buffer
	for {
		if _, err := io.ReadFull(r, h[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return cutShort(err)
		}
		n := int64(binary.LittleEndian.Uint32(h[4:]))
		if binary.LittleEndian.Uint32(h[:]) != frameMagic || n > maxFrame {
			return fmt.Errorf("%w: no frame", ErrCorrupt)
		}
		buf.Reset()
		if _, err := io.CopyN(&buf, r, n); err != nil { // takes no memory for what does not come
			return cutShort(err)
		}
		if frameCRC(h[4:8], buf.Bytes()) != binary.LittleEndian.Uint32(h[8:]) {
			return fmt.Errorf("%w: wrong checksum", ErrCorrupt)
		}
		if err := decodeRecords(buf.Bytes(), fn); err != nil {
			return err
		}
	}
}

func cutShort(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: cut short", ErrCorrupt)
	}
	return err
}

// ReadJournal calls fn for every record of [from, size), where from must be the start of a frame. It returns the end of
// the last valid frame, and the stretches that hold none: one that reaches size is what a crash in the middle of a
// write leaves, one before a valid frame is damage. Slices in records are valid during the call only.
func ReadJournal(st storage.Storage, path string, from, size int64,
	fn func(Record) error) (end int64, bad []Damage, err error) {
	return readJournal(st, path, from, size, nil, fn)
}

// readJournal is ReadJournal where open decrypts payloads; nil: they are not encrypted.
func readJournal(
	st storage.Storage, path string, from, size int64, open func([]byte) ([]byte, error), fn func(Record) error,
) (end int64, bad []Damage, err error) {
	f, err := st.Open(path, storage.Read)
	if err != nil {
		return 0, nil, err
	}
	defer f.Close()
	end = from
	var buf []byte
	for off := from; off < size; {
		payload, why, err := readFrame(f, off, size, &buf)
		if err != nil {
			return end, bad, err
		}
		length, locked := int64(len(payload)), false
		if why == "" && open != nil {
			if payload, err = open(payload); err != nil {
				why, locked = err.Error(), true
			}
		}
		if why == "" {
			// A frame whose sum is right was written by us: a record that does not parse is a version we don't know,
			// not damage to skip.
			if err := decodeRecords(payload, fn); err != nil {
				return end, bad, fmt.Errorf("journal %s at %d: %w", path, off, err)
			}
			off += frameHeader + length
			end = off
			continue
		}
		next, err := findFrame(f, off+1, size, &buf)
		if err != nil {
			return end, bad, err
		}
		bad = append(bad, Damage{Off: off, Len: next - off, Text: why, Locked: locked})
		off = next
	}
	return end, bad, nil
}

// EndsFrame says whether a frame of the journal of pack n ends at off, by the lengths of the frames before.
func (s *Set) EndsFrame(n uint32, off int64) (bool, error) {
	f, err := s.fs.Open(s.JournalPath(n), storage.Read)
	if err != nil {
		return false, err
	}
	defer f.Close()
	var at int64
	for h := make([]byte, frameHeader); at < off; {
		if _, err := f.ReadAt(h, at); errors.Is(err, io.EOF) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		if binary.LittleEndian.Uint32(h) != frameMagic {
			return false, nil
		}
		at += frameHeader + int64(binary.LittleEndian.Uint32(h[4:]))
	}
	return at == off, nil
}

// readFrame gives the payload of the frame at off, or says why there is none.
func readFrame(f io.ReaderAt, off, size int64, buf *[]byte) (payload []byte, why string, err error) {
	var h [frameHeader]byte
	if size-off < frameHeader {
		return nil, "cut short", nil
	}
	if _, err := f.ReadAt(h[:], off); err != nil {
		return nil, "", err
	}
	n := int64(binary.LittleEndian.Uint32(h[4:]))
	switch {
	case binary.LittleEndian.Uint32(h[:]) != frameMagic:
		return nil, "no frame", nil
	case n > maxFrame:
		return nil, "impossible length", nil
	case off+frameHeader+n > size:
		return nil, "cut short", nil
	}
	if int64(cap(*buf)) < n {
		*buf = make([]byte, n)
	}
	p := (*buf)[:n]
	if _, err := f.ReadAt(p, off+frameHeader); err != nil {
		return nil, "", err
	}
	if frameCRC(h[4:8], p) != binary.LittleEndian.Uint32(h[8:]) {
		return nil, "wrong checksum", nil
	}
	return p, "", nil
}

// findFrame gives the offset of the next valid frame at or after off, or size.
func findFrame(f storage.File, off, size int64, buf *[]byte) (int64, error) {
	var magic [4]byte
	binary.LittleEndian.PutUint32(magic[:], frameMagic)
	window := make([]byte, 64<<10)
	for off < size {
		n, err := f.ReadAt(window[:min(int64(len(window)), size-off)], off)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		i := bytes.Index(window[:n], magic[:])
		if i < 0 {
			behind := off
			if len(bytes.TrimLeft(window[:n], "\x00")) == 0 {
				if behind, err = skipHole(f, off, size); err != nil {
					return 0, err
				}
			}
			off = max(behind, off+int64(max(n-3, 1)))
			continue
		}
		off += int64(i)
		if _, why, err := readFrame(f, off, size, buf); err != nil || why == "" {
			return off, err
		}
		off++
	}
	return size, nil
}

// skipHole gives an offset up to which there is nothing but a hole at off. A file may have been made any length, and a
// hole of some TiB takes days to read.
func skipHole(f storage.File, off, size int64) (int64, error) {
	for n := size - off; n >= 1<<20; n /= 2 {
		used, err := f.Allocated(off, n)
		if err != nil {
			return 0, err
		}
		if used == 0 {
			return off + n, nil
		}
	}
	return off, nil
}
