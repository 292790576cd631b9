package prefetch

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/gpucr/gpucr-fs/index/crc32c"
)

// A packed hot set is a copy of the hot set's bytes in the order in which they
// are wanted. What a process touches is scattered: read from where it is stored
// a piece of 64 KiB costs a chunk four times as large. It is written by Pack when
// a profile is new, belongs to one checkpoint, and may be lost at any time.
//
// It consists of blocks, whose bytes follow each other; a table, whose numbers
// are uvarints but for the names' bytes and the CRCs: the number of files, each
// as length and name; the number of blocks, each as the number of its ranges,
// these as file, first page and number of pages, and a CRC-32C of its bytes,
// little endian; and a trailer: the table's offset, its CRC-32C, the magic.
type Packed struct {
	f      PackedFile
	size   int64
	blocks []block
}

// PackedFile is where a packed hot set lies.
type PackedFile interface {
	io.ReaderAt
	io.Closer
}

// block is read and checked as a whole. Its ranges lie behind each other in it.
type block struct {
	off, len int64
	crc      uint32
	ranges   []Range
}

const (
	packedMagic   = "GPH1"
	packedTrailer = 8 + 4 + 4
	// blockBytes bounds a block, unless RunBytes is smaller.
	blockBytes = 512 << 10
	// maxTable is some two million ranges. A block takes ten times its part of the
	// table in memory. A hot set that needs more is not packed.
	maxTable = 8 << 20
)

// ErrPacked marks a file that is not a packed hot set, or a damaged one.
var ErrPacked = errors.New("not a valid packed hot set")

var errPackedFull = errors.New("more ranges than a packed hot set holds")

// Pack writes the packed hot set of files, which are called names. What is zero
// is left out. It returns how many bytes it wrote.
func Pack(to io.Writer, files []File, names []string, hot []Range) (int64, error) {
	q := Queue{opts: Options{Files: files, Hot: hot}, heads: make([][]uint64, len(files))}
	w := bufio.NewWriterSize(to, 1<<20)
	var table []byte
	var blocks uint64
	var at int64
	buf := make([]byte, 0, blockBytes)
	var ranges []Range
	flush := func() error {
		if len(ranges) == 0 {
			return nil
		}
		table = binary.AppendUvarint(table, uint64(len(ranges)))
		for _, r := range ranges {
			table = binary.AppendUvarint(table, uint64(r.File))
			table = binary.AppendUvarint(table, uint64(r.Off/PageSize))
			table = binary.AppendUvarint(table, uint64(r.Len/PageSize))
		}
		table = binary.LittleEndian.AppendUint32(table, crc32c.Checksum(buf))
		if blocks++; len(table) > maxTable {
			return errPackedFull
		}
		at += int64(len(buf))
		_, err := w.Write(buf)
		buf, ranges = buf[:0], ranges[:0]
		return err
	}
	for _, r := range q.hotSet() {
		// The last page of a file may be a part of one.
		r.Len &^= PageSize - 1
		for _, s := range stretches(files[r.File], r) {
			for off := s.Off; off < s.End() && !s.zero; {
				n := min(s.End()-off, int64(cap(buf)-len(buf)))
				p := buf[len(buf) : len(buf)+int(n)]
				if k, err := files[r.File].ReadAt(p, off); int64(k) < n {
					return 0, fmt.Errorf("read %s: %w", names[r.File], err)
				}
				buf, ranges = buf[:len(buf)+int(n)], append(ranges, Range{r.File, off, n})
				if off += n; len(buf) == cap(buf) {
					if err := flush(); err != nil {
						return 0, err
					}
				}
			}
		}
	}
	if err := flush(); err != nil {
		return 0, err
	}
	head := binary.AppendUvarint(nil, uint64(len(names)))
	for _, n := range names {
		head = binary.AppendUvarint(head, uint64(len(n)))
		head = append(head, n...)
	}
	table = append(binary.AppendUvarint(head, blocks), table...)
	if len(table) > maxTable || len(names) > maxProfileFiles {
		return 0, errPackedFull
	}
	end := binary.LittleEndian.AppendUint64(nil, uint64(at))
	end = binary.LittleEndian.AppendUint32(end, crc32c.Checksum(table))
	end = append(end, packedMagic...)
	w.Write(table) // errors stick
	w.Write(end)
	return at + int64(len(table)+len(end)), w.Flush()
}

// OpenPacked reads the table of a packed hot set of size bytes, of files that are
// called names. It takes f over. Errors wrap ErrPacked.
func OpenPacked(f PackedFile, size int64, names []string) (*Packed, error) {
	p := &Packed{f: f, size: size}
	err := p.load(names)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%w: %w", ErrPacked, err)
	}
	return p, nil
}

// Close closes the file.
func (p *Packed) Close() error { return p.f.Close() }

// Bytes returns how large the hot set is.
func (p *Packed) Bytes() (n int64) {
	for _, b := range p.blocks {
		n += b.len
	}
	return n
}

func (p *Packed) load(names []string) error {
	end := make([]byte, packedTrailer)
	if _, err := p.f.ReadAt(end, p.size-packedTrailer); err != nil {
		return err
	}
	at := binary.LittleEndian.Uint64(end)
	if string(end[12:]) != packedMagic || at > uint64(p.size-packedTrailer) ||
		uint64(p.size-packedTrailer)-at > maxTable {
		return errors.New("it does not end like one")
	}
	table := make([]byte, p.size-packedTrailer-int64(at))
	if _, err := p.f.ReadAt(table, int64(at)); err != nil {
		return err
	}
	if crc32c.Checksum(table) != binary.LittleEndian.Uint32(end[8:]) {
		return errors.New("its checksum is wrong")
	}
	return p.parse(table, int64(at), names)
}

// parse reads the table of a set whose blocks have size bytes.
func (p *Packed) parse(table []byte, size int64, names []string) error {
	number := make(map[string]int, len(names))
	for i, n := range names {
		number[n] = i
	}
	v := varints{b: table}
	n := v.uint()
	if n > maxProfileFiles {
		return fmt.Errorf("%d files", n)
	}
	var files []int
	for range n {
		k := v.uint()
		if v.bad || k > maxNameBytes || k > uint64(len(v.b)) {
			return errors.New("a name is cut")
		}
		i, ok := number[string(v.b[:k])]
		if !ok {
			return errors.New("it is of other files")
		}
		files = append(files, i)
		v.b = v.b[k:]
	}
	var off int64
	blocks := v.uint()
	// Each takes eight bytes at least.
	if v.bad || blocks > uint64(len(v.b))/8 {
		return fmt.Errorf("%d blocks in %d bytes", blocks, len(v.b))
	}
	p.blocks = make([]block, 0, blocks)
	for ; blocks > 0; blocks-- {
		b := block{off: off}
		for ranges := v.uint(); ranges > 0; ranges-- {
			file, page, pages := v.uint(), v.uint(), v.uint()
			if v.bad || file >= uint64(len(files)) || page > math.MaxInt64/PageSize/2 || pages == 0 ||
				pages > blockBytes/PageSize {
				return errors.New("a bad range")
			}
			r := Range{files[file], int64(page) * PageSize, int64(pages) * PageSize}
			b.ranges, b.len = append(b.ranges, r), b.len+r.Len
		}
		if v.bad || len(v.b) < 4 || b.len > blockBytes || b.len == 0 {
			return errors.New("a bad block")
		}
		b.crc = binary.LittleEndian.Uint32(v.b)
		v.b = v.b[4:]
		p.blocks, off = append(p.blocks, b), off+b.len
	}
	if v.bad || len(v.b) > 0 || off != size {
		return errors.New("its table does not match its length")
	}
	return nil
}

// read reads a block and checks it.
func (p *Packed) read(b *block, buf []byte) error {
	if _, err := p.f.ReadAt(buf[:b.len], b.off); err != nil {
		return err
	}
	if crc32c.Checksum(buf[:b.len]) != b.crc {
		return errors.New("wrong checksum")
	}
	return nil
}

// HotArrived tells that the first n bytes of the packed hot set can be read without
// waiting; see Options.HotAway.
func (q *Queue) HotArrived(n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hotHere = max(q.hotHere, n)
	q.wakeAny.Broadcast()
}

// blockReady reports whether the next block of the packed hot set may be read.
// Preconditions: mu is held.
func (q *Queue) blockReady() bool {
	return len(q.blocks) > 0 && q.blocks[0].off+q.blocks[0].len <= q.hotHere
}

// claimBlock takes what is wanted of the next block of the packed hot set.
// Preconditions: mu is held, there is one.
func (q *Queue) claimBlock() (r run, any bool) {
	b := &q.blocks[0]
	q.blocks = q.blocks[1:]
	for _, x := range b.ranges {
		units := q.units[x.File]
		for i := int(x.Off / UnitBytes); i < min(int(x.End()/UnitBytes), len(units)); i++ {
			if !units[i].waits() && units[i] != idle {
				continue
			}
			from := i
			for ; i < min(int(x.End()/UnitBytes), len(units)) && (units[i].waits() || units[i] == idle); i++ {
				units[i] = inFlight
			}
			r.parts = append(r.parts, q.span(x.File, from, i))
		}
	}
	if len(r.parts) == 0 {
		return r, false
	}
	r.Range, r.class, r.packed = r.parts[0], hot, b
	q.begin(&r)
	return r, true
}

// unpacked gives the parts of a block that cannot be read back to those who
// bring them from where they are stored. Preconditions: mu is held.
func (q *Queue) unpacked(r run) {
	for _, p := range r.parts {
		q.each(p, func(u unitRef, s *state) {
			*s = wantedHot
			if len(q.readers[u]) > 0 || q.joined[u] {
				q.demands = append(q.demands, u)
			}
		})
		q.lists[hot] = append(q.lists[hot], p)
	}
	q.running--
	q.wakeAny.Broadcast()
	q.wakeExpress.Broadcast()
}

// fetchPacked brings a block of the packed hot set.
func (q *Queue) fetchPacked(r run) {
	buf := q.opts.Buffers.Get()
	defer q.opts.Buffers.Put(buf)
	if err := q.opts.Packed.read(r.packed, buf); err != nil {
		q.opts.Logger.Warn("cannot use the packed hot set, going to where it is stored", "err", err)
		q.mu.Lock()
		q.unpacked(r)
		q.mu.Unlock()
		return
	}
	at := int64(0)
	next := r.parts
	parts := make([]Part, 0, len(next))
	for _, x := range r.packed.ranges {
		for len(next) > 0 && next[0].File == x.File && next[0].Off >= x.Off && next[0].End() <= x.End() {
			parts = append(parts, Part{next[0], buf[at+next[0].Off-x.Off:][:next[0].Len]})
			next = next[1:]
		}
		at += x.Len
	}
	q.give(parts)
	q.delivered(r, 0, 0, nil)
}
