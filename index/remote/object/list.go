package object

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// PackRef names a pack object that a list speaks of.
type PackRef struct {
	Name Name
	Size int64 // bytes of the object
}

// List says where chunks lie, and carries metadata.
type List struct {
	Packs   []PackRef
	Chunks  []pack.Chunk  // Loc.Pack is the place in Packs, from 1 on; no two overlap
	Records []pack.KV     // in the order in which they are to be applied; Seq and Delete do not count
	Coder   *cipher.Coder // encrypts the object; nil: it is not encrypted
}

// Limits of lists. Encode refuses what Decode would.
const (
	// MaxPacks is how many pack objects one list speaks of: 16 TiB of payload.
	MaxPacks = 1 << 18
	// MaxChunks is how many chunks.
	MaxChunks = 1 << 28
	// MaxRecords is how many records of metadata.
	MaxRecords = 1 << 24
	// window bounds what a reader of a list needs for decompression, in bytes.
	window = 8 << 20
	// A list may be decompressed to free + ratio times its own length in bytes: ids do not compress, and a small
	// object that keeps a reader busy for hours was forged.
	free  = 64 << 20
	ratio = 16
)

const (
	keyPack = "pack"
	keyEnd  = "end"
	// keyMeta stands before the keys of the metadata, so that none can be taken for one of the others.
	keyMeta = "m/"
	// lists is the pack number in the header of a list.
	lists = 0
)

const packRefSize = 4 + len(Name{}) + 8

// counts is what the last record of a list tells.
type counts struct{ packs, chunks, records uint64 }

func (c counts) encode() []byte {
	b := binary.LittleEndian.AppendUint64(nil, c.packs)
	b = binary.LittleEndian.AppendUint64(b, c.chunks)
	return binary.LittleEndian.AppendUint64(b, c.records)
}

func (l *List) check() error {
	switch {
	case len(l.Packs) > MaxPacks || len(l.Chunks) > MaxChunks || len(l.Records) > MaxRecords:
		return fmt.Errorf("a list of %d packs, %d chunks and %d records: %w", len(l.Packs), len(l.Chunks),
			len(l.Records), pack.ErrTooLarge)
	}
	for _, p := range l.Packs {
		if p.Size < 0 || p.Size > MaxPack {
			return fmt.Errorf("a pack of %d bytes: %w", p.Size, pack.ErrTooLarge)
		}
	}
	slices.SortFunc(l.Chunks, func(a, b pack.Chunk) int {
		return cmp.Or(cmp.Compare(a.Loc.Pack, b.Loc.Pack), cmp.Compare(a.Loc.Page, b.Loc.Page))
	})
	var last pack.Loc
	for _, c := range l.Chunks {
		if err := inside(c.Loc, l.Packs); err != nil {
			return err
		}
		if err := behind(c.Loc, last); err != nil {
			return err
		}
		last = c.Loc
	}
	return nil
}

// behind refuses a location that does not come after another one.
func behind(l, last pack.Loc) error {
	if l.Pack < last.Pack || l.Pack == last.Pack && l.Offset() < last.Offset()+last.Slot() {
		return fmt.Errorf("%w: a slot at %d of pack %d after one at %d of pack %d", ErrCorrupt, l.Offset(), l.Pack,
			last.Offset(), last.Pack)
	}
	return nil
}

// inside refuses a location in no pack, or beyond its end.
func inside(l pack.Loc, packs []PackRef) error {
	if l.Pack == 0 || int(l.Pack) > len(packs) || l.Offset()+l.Slot() > packs[l.Pack-1].Size {
		return fmt.Errorf("%w: a slot of %d bytes at %d of pack %d of %d", ErrCorrupt, l.Slot(), l.Offset(), l.Pack,
			len(packs))
	}
	return nil
}

// Encode gives the object of a list, and puts its chunks into the order of their places.
func (l *List) Encode(store [16]byte) ([]byte, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	enc, err := zstd.NewWriter(nil, zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer enc.Close()
	head := make([]pack.KV, len(l.Packs))
	for i, p := range l.Packs {
		v := binary.LittleEndian.AppendUint32(nil, uint32(i+1))
		v = binary.LittleEndian.AppendUint64(append(v, p.Name[:]...), uint64(p.Size))
		head[i] = pack.KV{Key: keyPack, Value: v}
	}
	h := pack.Header{Version: Version, Pack: lists, Store: store}
	b, err := pack.EncodeFrames(h, nil, head)
	if err != nil {
		return nil, err
	}
	kvs := make([]pack.KV, len(l.Records), len(l.Records)+1)
	for i, r := range l.Records {
		kvs[i] = pack.KV{Key: keyMeta + r.Key, Value: r.Value}
	}
	end := counts{uint64(len(l.Packs)), uint64(len(l.Chunks)), uint64(len(l.Records))}
	more, err := pack.EncodeFrames(h, l.Chunks, append(kvs, pack.KV{Key: keyEnd, Value: end.encode()}))
	if err != nil {
		return nil, err
	}
	plain := append(b, more...)
	out := enc.EncodeAll(plain, nil)
	if len(plain) > free+ratio*len(out) {
		return nil, fmt.Errorf("a list of %d bytes: %w", len(plain), pack.ErrTooLarge)
	}
	if l.Coder != nil {
		out = l.Coder.SealBytes(cipher.ForList, out)
	}
	return out, nil
}

// Visitor is told what a list holds: packs, chunks in the order of their places, records. A nil function is not called.
// Whatever a function is given is valid during the call only.
type Visitor struct {
	Pack   func(number uint32, p PackRef) error
	Chunk  func(pack.Chunk) error
	Record func(pack.KV) error
	Coder  *cipher.Coder // decrypts the object; nil: it is not encrypted
}

// Source is a list as it lies in a bucket, and what the root that names it says of it. The root's meta and the list are
// written one for the other, so a list that says something else was put in the other's place.
type Source struct {
	io.Reader
	First string             // key of the first record of its metadata; "": unknown
	Lists func(PackRef) bool // whether the root lists a pack; it may list more than the list names. nil: unknown
}

// ErrReplaced: a list is not the one of which the root speaks. It wraps ErrCorrupt.
var ErrReplaced = fmt.Errorf("%w: this is not the list of the checkpoint", ErrCorrupt)

// Decode reads what Encode gave, and refuses a list that is not as its root says. What it needs of memory does not grow
// with the list, but for 24 bytes a pack. When it fails, the visitor may have been told a part. Its errors are those of
// ReadPack. An error of the reader is given as it is: that a list could not be read is no damage.
func Decode(list Source, store [16]byte, v Visitor) error {
	from := &source{r: list.Reader}
	list.Reader = from
	err := decode(list, store, v)
	if err != nil && from.err != nil {
		return from.err
	}
	return err
}

// source remembers how what it reads from failed.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

func decode(list Source, store [16]byte, v Visitor) error {
	r := list.Reader
	if v.Coder != nil {
		r = v.Coder.Reader(r, cipher.ForList)
	}
	in := &counting{r: r}
	dec, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(window), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("%w: %v", ErrCorrupt, err)
	}
	defer dec.Close()
	d := decoder{v: v, of: list, store: store}
	out := &bounded{r: dec, in: in}
	if err := pack.DecodeFrames(out, d.record); err != nil {
		if out.err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, out.err)
		}
		return err
	}
	if !d.ended {
		return fmt.Errorf("%w: a list without its end", ErrCorrupt)
	}
	if list.First != "" && d.n.records == 0 {
		return fmt.Errorf("%w: it has no record %.60q", ErrReplaced, list.First)
	}
	return nil
}

// counting counts what is read.
type counting struct {
	r io.Reader
	n int64
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// bounded is a decompressed stream that may not become too long for what it was made of. It remembers how it failed:
// what cannot be decompressed is damage, too.
type bounded struct {
	r   io.Reader
	in  *counting
	n   int64
	err error
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.n += int64(n); b.n > free+ratio*b.in.n {
		err = fmt.Errorf("%d bytes become more than %d", b.in.n, b.n)
	}
	if err != nil && err != io.EOF {
		b.err = err
	}
	return n, err
}

// decoder is the state of one Decode.
type decoder struct {
	v       Visitor
	of      Source
	store   [16]byte
	headers int
	packs   []PackRef
	n       counts
	last    pack.Loc // of the chunk told last
	ended   bool
}

func (d *decoder) record(r pack.Record) error {
	switch {
	case d.ended:
		return fmt.Errorf("%w: something behind the end", ErrCorrupt)
	case r.Header != nil && d.headers < 2:
		d.headers++
		return checkHeader(r.Header, lists, d.store)
	case d.headers == 0:
	case r.Chunk != nil && d.n.chunks < MaxChunks:
		d.n.chunks++
		if err := inside(r.Chunk.Loc, d.packs); err != nil {
			return err
		}
		if err := behind(r.Chunk.Loc, d.last); err != nil {
			return err
		}
		d.last = r.Chunk.Loc
		return call(d.v.Chunk, *r.Chunk)
	case r.KV != nil && !r.KV.Delete:
		return d.kv(*r.KV)
	}
	return fmt.Errorf("%w: an unexpected record", ErrCorrupt)
}

func call[T any](fn func(T) error, v T) error {
	if fn == nil {
		return nil
	}
	return fn(v)
}

func (d *decoder) kv(kv pack.KV) error {
	key, meta := cutMeta(kv.Key)
	switch {
	case meta && d.n.records < MaxRecords:
		if d.n.records++; d.n.records == 1 && d.of.First != "" && key != d.of.First {
			return fmt.Errorf("%w: its first record is %.60q, not %.60q", ErrReplaced, key, d.of.First)
		}
		return call(d.v.Record, pack.KV{Key: key, Value: kv.Value})
	case kv.Key == keyPack && len(kv.Value) == packRefSize && len(d.packs) < MaxPacks && d.n.chunks == 0:
		var p PackRef
		number := binary.LittleEndian.Uint32(kv.Value)
		copy(p.Name[:], kv.Value[4:])
		size := binary.LittleEndian.Uint64(kv.Value[4+len(p.Name):])
		d.n.packs++
		if uint64(number) != d.n.packs || size > MaxPack {
			return fmt.Errorf("%w: pack %d of %d bytes", ErrCorrupt, number, size)
		}
		p.Size = int64(size)
		if d.of.Lists != nil && !d.of.Lists(p) {
			return fmt.Errorf("%w: it names pack %s of %d bytes, which the root does not list", ErrReplaced, p.Name,
				p.Size)
		}
		d.packs = append(d.packs, p)
		if d.v.Pack == nil {
			return nil
		}
		return d.v.Pack(number, p)
	case kv.Key == keyEnd:
		d.ended = true
		if string(kv.Value) != string(d.n.encode()) {
			return fmt.Errorf("%w: a list that is not whole", ErrCorrupt)
		}
		return nil
	}
	return fmt.Errorf("%w: an unexpected record", ErrCorrupt)
}

func cutMeta(key string) (string, bool) {
	if len(key) >= len(keyMeta) && key[:len(keyMeta)] == keyMeta {
		return key[len(keyMeta):], true
	}
	return "", false
}
