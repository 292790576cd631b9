package manifest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
)

// ChunkRef names a chunk a segment uses.
type ChunkRef struct {
	ID     chunk.ID
	Len    uint32 // bytes of content
	Stored uint32 // bytes its slot occupies
}

// Run is a stretch of a file with one source. Start is relative to the segment.
type Run struct {
	Start, Len int64
	Chunk      int32  // index into Segment.Chunks; ZeroRun for zeros
	Off        uint32 // where in the chunk's content it begins
}

// ZeroRun in Run.Chunk marks zeros.
const ZeroRun = -1

// Segment maps Len bytes of a file from Start on.
type Segment struct {
	Start, Len int64
	Chunks     []ChunkRef
	Runs       []Run // in order, without gap, none empty
}

// Limits of one segment, so that reading one needs bounded memory: 1 GiB of data in chunks of average size, and 6 MiB
// of runs.
const (
	// MaxChunks and MaxRuns are where a writer begins a new segment, or splits one that was overwritten.
	MaxChunks = 4096
	MaxRuns   = 1 << 18
	// What may be read, and written, is twice as much: a writer looks when it has cut a chunk, or overwritten a stretch
	// of one.
	limitChunks = 2 * MaxChunks
	limitRuns   = 2*MaxRuns + 1
	// MaxChunk bounds a chunk in bytes: [chunk.Params] allow no longer one.
	MaxChunk = 16 << 20
)

// Find gives the index of the run that holds byte off of the segment.
func (s *Segment) Find(off int64) int {
	return sort.Search(len(s.Runs), func(i int) bool { return s.Runs[i].Start+s.Runs[i].Len > off })
}

// Zero is how many bytes of the segment are in zero runs.
func (s *Segment) Zero() (sum int64) {
	for _, r := range s.Runs {
		if r.Chunk == ZeroRun {
			sum += r.Len
		}
	}
	return sum
}

const (
	kindZero = 0
	kindNext = 1
	kindAt   = 2
)

// Split halves the segment until no part has more than MaxChunks chunks and MaxRuns runs. Halves, so that a place that
// is overwritten again and again does not leave a segment of one run each time.
func (s *Segment) Split() []*Segment {
	if len(s.Chunks) <= MaxChunks && len(s.Runs) <= MaxRuns || len(s.Runs) < 2 {
		return []*Segment{s}
	}
	mid := len(s.Runs) / 2
	at := s.Runs[mid].Start
	a := &Segment{Start: s.Start, Len: at, Chunks: s.Chunks, Runs: slices.Clone(s.Runs[:mid])}
	b := &Segment{Start: s.Start + at, Len: s.Len - at, Chunks: s.Chunks, Runs: slices.Clone(s.Runs[mid:])}
	for i := range b.Runs {
		b.Runs[i].Start -= at
	}
	a.DropUnused()
	b.DropUnused()
	return append(a.Split(), b.Split()...)
}

// DropUnused takes chunks out of s that no run uses.
func (s *Segment) DropUnused() {
	to := make([]int32, len(s.Chunks))
	for i := range to {
		to[i] = -1
	}
	var kept []ChunkRef
	for i := range s.Runs {
		r := &s.Runs[i]
		if r.Chunk == ZeroRun {
			continue
		}
		if to[r.Chunk] < 0 {
			to[r.Chunk] = int32(len(kept))
			kept = append(kept, s.Chunks[r.Chunk])
		}
		r.Chunk = to[r.Chunk]
	}
	s.Chunks = kept
}

// EncodeSegment gives the stored form of s.
func EncodeSegment(s *Segment) ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLimit, err)
	}
	pb := &manifestpb.Segment{Start: s.Start, Len: s.Len, Ids: make([]byte, 0, len(s.Chunks)*chunk.IDSize)}
	for _, c := range s.Chunks {
		pb.Ids = append(pb.Ids, c.ID[:]...)
		pb.Lens = append(pb.Lens, c.Len)
		pb.Stored = append(pb.Stored, c.Stored)
	}
	var ci, co int64 // where the last data run ended
	var open int64   // length of the kindNext run being gathered
	flush := func() {
		if open > 0 {
			pb.Runs = binary.AppendUvarint(pb.Runs, uint64(open)<<2|kindNext)
			open = 0
		}
	}
	for _, r := range s.Runs {
		if r.Chunk == ZeroRun {
			flush()
			pb.Runs = binary.AppendUvarint(pb.Runs, uint64(r.Len)<<2|kindZero)
			continue
		}
		if ci < int64(len(s.Chunks)) && co == int64(s.Chunks[ci].Len) {
			ci, co = ci+1, 0
		}
		if int64(r.Chunk) == ci && int64(r.Off) == co {
			open += r.Len
		} else {
			flush()
			pb.Runs = binary.AppendUvarint(pb.Runs, uint64(r.Len)<<2|kindAt)
			pb.Runs = binary.AppendUvarint(pb.Runs, uint64(r.Chunk))
			pb.Runs = binary.AppendUvarint(pb.Runs, uint64(r.Off))
		}
		ci, co = int64(r.Chunk), int64(r.Off)+r.Len
	}
	flush()
	return marshal(pb)
}

var errSegment = errors.New("malformed segment")

// check holds a segment to what a reader relies on: chunks of a possible size, and runs that cover it without gap and
// lie within their chunks.
func (s *Segment) check() error {
	if s.Start < 0 || s.Len < 0 || s.Len > MaxFileSize || s.Start > MaxFileSize-s.Len {
		return fmt.Errorf("%w: %d bytes from %d on", errSegment, s.Len, s.Start)
	}
	if len(s.Chunks) > limitChunks || len(s.Runs) > limitRuns {
		return fmt.Errorf("%w: %d chunks, %d runs", errSegment, len(s.Chunks), len(s.Runs))
	}
	for _, c := range s.Chunks {
		if c.Len == 0 || c.Len > MaxChunk {
			return fmt.Errorf("%w: chunk of %d bytes", errSegment, c.Len)
		}
		// What does not become smaller is stored as it is.
		if c.Stored == 0 || int64(c.Stored) > int64(c.Len)+chunk.PageSize-1 {
			return fmt.Errorf("%w: chunk of %d bytes in a slot of %d", errSegment, c.Len, c.Stored)
		}
	}
	var pos int64
	for _, r := range s.Runs {
		if r.Start != pos || r.Len <= 0 || r.Len > s.Len-pos {
			return fmt.Errorf("%w: run at %d", errSegment, pos)
		}
		pos += r.Len
		if r.Chunk == ZeroRun {
			continue
		}
		if r.Chunk < 0 || int(r.Chunk) >= len(s.Chunks) || int64(r.Off)+r.Len > int64(s.Chunks[r.Chunk].Len) {
			return fmt.Errorf("%w: run at %d leaves its chunk", errSegment, r.Start)
		}
	}
	if pos != s.Len {
		return fmt.Errorf("%w: runs cover %d of %d bytes", errSegment, pos, s.Len)
	}
	return nil
}

// DecodeSegment reads what EncodeSegment wrote and checks that its runs cover the segment and lie within their chunks.
func DecodeSegment(b []byte) (*Segment, error) {
	var pb manifestpb.Segment
	if err := unmarshal(b, &pb); err != nil {
		return nil, fmt.Errorf("%w: %v", errSegment, err)
	}
	n := len(pb.Lens)
	if len(pb.Ids) != n*chunk.IDSize || len(pb.Stored) != n || n > limitChunks {
		return nil, fmt.Errorf("%w: %d lengths, %d bytes of ids", errSegment, n, len(pb.Ids))
	}
	s := &Segment{Start: pb.Start, Len: pb.Len, Chunks: make([]ChunkRef, n)}
	for i := range s.Chunks {
		s.Chunks[i] = ChunkRef{ID: chunk.ID(pb.Ids[i*chunk.IDSize:]), Len: pb.Lens[i], Stored: pb.Stored[i]}
	}
	if err := s.decodeRuns(pb.Runs); err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	return s, nil
}

// decodeRuns takes the runs apart. It looks at no more than it needs to end, within the limits; check does the rest.
func (s *Segment) decodeRuns(b []byte) error {
	next := func() (uint64, bool) {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return 0, false
		}
		b = b[n:]
		return v, true
	}
	var pos int64
	var ci, co uint64
	for len(b) > 0 {
		v, ok := next()
		length := int64(v >> 2)
		if !ok || length <= 0 || length > s.Len-pos || len(s.Runs) >= limitRuns {
			return fmt.Errorf("%w: run at %d", errSegment, pos)
		}
		switch v & 3 {
		case kindZero:
			s.Runs = append(s.Runs, Run{Start: pos, Len: length, Chunk: ZeroRun})
			pos += length
			continue
		case kindAt:
			var ok1, ok2 bool
			ci, ok1 = next()
			co, ok2 = next()
			if !ok1 || !ok2 {
				return fmt.Errorf("%w: run at %d", errSegment, pos)
			}
		case kindNext:
		default:
			return fmt.Errorf("%w: run at %d has an unknown kind", errSegment, pos)
		}
		for length > 0 {
			if ci < uint64(len(s.Chunks)) && co == uint64(s.Chunks[ci].Len) {
				ci, co = ci+1, 0
			}
			// Behind the last byte of a chunk there is nothing to take: an empty chunk would be passed over for ever.
			if ci >= uint64(len(s.Chunks)) || co >= uint64(s.Chunks[ci].Len) || len(s.Runs) >= limitRuns {
				return fmt.Errorf("%w: run at %d leaves its chunk", errSegment, pos)
			}
			part := min(length, int64(uint64(s.Chunks[ci].Len)-co))
			s.Runs = append(s.Runs, Run{Start: pos, Len: part, Chunk: int32(ci), Off: uint32(co)})
			pos += part
			length -= part
			co += uint64(part)
		}
	}
	return nil
}
