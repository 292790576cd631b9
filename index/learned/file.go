package learned

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"sort"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// A file of places:
//
//	header     u32 magic "GPLN", u32 version, u64 number of packs, u64 of records; u32 CRC-32C of what is before
//	packs      for each 20 bytes name, u64 its length; u32 CRC-32C
//	blocks     of 64 records, the last of fewer, each with u32 CRC-32C behind: 32 bytes id, location
//	fences     for each block the first 8 bytes of its first id; u32 CRC-32C
//
// Records are in the order of their ids. Locations name packs by their number in the file, from 1 on.
const (
	magic       = 0x4e4c5047 // "GPLN"
	version     = 1          // of a file whose locations are plain; sealed: of one whose are sealed
	sealed      = 2
	headerSize  = 4 + 4 + 8 + 8 + 4
	refSize     = object.NameSize + 8
	perBlock    = 64
	sumSize     = 4
	fenceSize   = 8
	blocksAhead = 128 // that who reads all of a file reads at once
)

// recordSize gives the bytes of a record, blockSize those of a full block.
func recordSize(version uint32) int {
	if version == sealed {
		return chunk.IDSize + pack.SealedLocSize
	}
	return chunk.IDSize + pack.LocSize
}

func blockSize(record int) int { return perBlock*record + sumSize }

var errForm = errors.New("not a file of places as it was written")

// file is an open file of places.
type file struct {
	storage.File
	packs   []object.PackRef
	records int
	record  int   // bytes of one
	begin   int64 // of the blocks
	fences  []uint64
}

func le32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

// seal appends the sum of b.
func seal(b []byte) []byte { return binary.LittleEndian.AppendUint32(b, crc32c.Checksum(b)) }

// opened gives what was sealed.
func opened(b []byte) ([]byte, error) {
	n := len(b) - sumSize
	if n < 0 || le32(b[n:]) != crc32c.Checksum(b[:n]) {
		return nil, errForm
	}
	return b[:n], nil
}

func openFile(s storage.Storage, path string) (*file, error) {
	f, err := s.Open(path, storage.Read)
	if err != nil {
		return nil, err
	}
	out := &file{File: f}
	if err := out.read(); err != nil {
		f.Close()
		return nil, err
	}
	return out, nil
}

func blocksOf(records int64) int64 { return (records + perBlock - 1) / perBlock }

func sizeOf(packs, records, record int64) int64 {
	return headerSize + packs*refSize + sumSize + records*record + blocksOf(records)*(sumSize+fenceSize) + sumSize
}

// piece reads what was sealed at off.
func (f *file) piece(off, n int64) ([]byte, error) {
	b := make([]byte, n)
	if err := f.fill(b, off); err != nil {
		return nil, err
	}
	return opened(b)
}

// fill reads all of b. A file that ends before is not as it was written; what the disk says tells nothing of that.
func (f *file) fill(b []byte, off int64) error {
	n, err := f.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return errForm
	}
	return err
}

// read reads all but the blocks.
func (f *file) read() error {
	size, err := f.Size()
	if err != nil {
		return err
	}
	h, err := f.piece(0, headerSize)
	if err != nil {
		return err
	}
	packs, records := binary.LittleEndian.Uint64(h[8:]), binary.LittleEndian.Uint64(h[16:])
	f.record = recordSize(le32(h[4:]))
	if v := le32(h[4:]); le32(h) != magic || v != version && v != sealed ||
		packs > uint64(size) || records > uint64(size) ||
		sizeOf(int64(packs), int64(records), int64(f.record)) != size {
		return errForm
	}
	b, err := f.piece(headerSize, int64(packs)*refSize+sumSize)
	if err != nil {
		return err
	}
	for ; len(b) > 0; b = b[refSize:] {
		ref := object.PackRef{Name: object.Name(b), Size: int64(binary.LittleEndian.Uint64(b[object.NameSize:]))}
		if ref.Size < 0 || ref.Size > object.MaxPack {
			return errForm
		}
		f.packs = append(f.packs, ref)
	}
	f.records, f.begin = int(records), headerSize+int64(packs)*refSize+sumSize
	n := blocksOf(int64(records)) * fenceSize
	if b, err = f.piece(size-n-sumSize, n+sumSize); err != nil {
		return err
	}
	for ; len(b) > 0; b = b[fenceSize:] {
		f.fences = append(f.fences, binary.BigEndian.Uint64(b))
	}
	return nil
}

// block gives the records of a block that was read, of which n are left in the file.
func (f *file) block(b []byte, n int) (records, rest []byte, err error) {
	end := min(n, perBlock)*f.record + sumSize
	if len(b) < end {
		return nil, nil, errForm
	}
	records, err = opened(b[:end])
	return records, b[end:], err
}

// decode reads a record, and refuses one that lies in no pack of the file.
func (f *file) decode(b []byte) (c pack.Chunk, err error) {
	copy(c.ID[:], b)
	if c.Loc, err = pack.DecodeLoc(b[chunk.IDSize:f.record]); err != nil {
		return c, errors.Join(errForm, err)
	}
	if n := int(c.Loc.Pack); n > len(f.packs) || c.Loc.Offset()+c.Loc.Slot() > f.packs[n-1].Size {
		return c, errForm
	}
	return c, nil
}

// find gives the first place of a chunk in the file.
func (f *file) find(id chunk.ID, may func(object.Name) bool) (c pack.Chunk, ok bool, err error) {
	key := binary.BigEndian.Uint64(id[:])
	first := sort.Search(len(f.fences), func(i int) bool { return f.fences[i] >= key })
	for i := max(0, first-1); i < len(f.fences) && f.fences[i] <= key; i++ {
		left := f.records - i*perBlock
		b := make([]byte, min(left, perBlock)*f.record+sumSize)
		if err := f.fill(b, f.begin+int64(i)*int64(blockSize(f.record))); err != nil {
			return c, false, err
		}
		records, _, err := f.block(b, left)
		if err != nil {
			return c, false, err
		}
		n := len(records) / f.record
		at := func(k int) []byte { return records[k*f.record:] }
		k := sort.Search(n, func(k int) bool { return bytes.Compare(at(k)[:chunk.IDSize], id[:]) >= 0 })
		for ; k < n && bytes.Equal(at(k)[:chunk.IDSize], id[:]); k++ {
			c, err := f.decode(at(k))
			if err != nil || may == nil || may(f.packs[c.Loc.Pack-1].Name) {
				return c, err == nil, err
			}
		}
	}
	return c, false, nil
}

// each gives the records of the file, one after the other.
func (f *file) each() func() (pack.Chunk, bool, error) {
	all := io.NewSectionReader(f.File, f.begin, int64(f.records)*int64(f.record)+blocksOf(int64(f.records))*sumSize)
	buf := make([]byte, blocksAhead*blockSize(f.record))
	var ahead, records []byte
	left := f.records
	return func() (c pack.Chunk, ok bool, err error) {
		if len(records) == 0 {
			if left == 0 {
				return c, false, nil
			}
			if len(ahead) == 0 {
				n, err := io.ReadFull(all, buf)
				if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
					return c, false, err
				}
				ahead = buf[:n]
			}
			if records, ahead, err = f.block(ahead, left); err != nil {
				return c, false, err
			}
			left -= len(records) / f.record
		}
		c, err = f.decode(records)
		records = records[f.record:]
		return c, err == nil, err
	}
}
