package manifest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sort"

	"google.golang.org/protobuf/proto"

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

// Limits of one segment, so that reading one needs bounded memory: 1 GiB of data in chunks of average size, and 6 MiB of runs.
const (
	MaxChunks = 4096
	MaxRuns   = 1 << 18
)

// Find gives the index of the run that holds byte off of the segment.
func (s *Segment) Find(off int64) int {
	return sort.Search(len(s.Runs), func(i int) bool { return s.Runs[i].Start+s.Runs[i].Len > off })
}

const (
	kindZero = 0
	kindNext = 1
	kindAt   = 2
)

// EncodeSegment gives the stored form of s.
func EncodeSegment(s *Segment) ([]byte, error) {
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
	return proto.Marshal(pb)
}

var errSegment = errors.New("malformed segment")

// DecodeSegment reads what EncodeSegment wrote and checks that its runs cover the segment and lie within their chunks.
func DecodeSegment(b []byte) (*Segment, error) {
	var pb manifestpb.Segment
	if err := proto.Unmarshal(b, &pb); err != nil {
		return nil, fmt.Errorf("%w: %v", errSegment, err)
	}
	n := len(pb.Lens)
	if len(pb.Ids) != n*chunk.IDSize || len(pb.Stored) != n || n > MaxChunks*2 || pb.Start < 0 || pb.Len < 0 {
		return nil, fmt.Errorf("%w: %d lengths, %d bytes of ids", errSegment, n, len(pb.Ids))
	}
	s := &Segment{Start: pb.Start, Len: pb.Len, Chunks: make([]ChunkRef, n)}
	for i := range s.Chunks {
		if pb.Lens[i] == 0 || pb.Lens[i] > 16<<20 {
			return nil, fmt.Errorf("%w: chunk of %d bytes", errSegment, pb.Lens[i])
		}
		s.Chunks[i] = ChunkRef{ID: chunk.ID(pb.Ids[i*chunk.IDSize:]), Len: pb.Lens[i], Stored: pb.Stored[i]}
	}
	return s, s.decodeRuns(pb.Runs)
}

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
		if !ok || length <= 0 || length > s.Len-pos || len(s.Runs) > 2*MaxRuns {
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
			if ci >= uint64(len(s.Chunks)) || co > uint64(s.Chunks[ci].Len) {
				return fmt.Errorf("%w: run at %d leaves its chunk", errSegment, pos)
			}
			part := min(length, int64(uint64(s.Chunks[ci].Len)-co))
			s.Runs = append(s.Runs, Run{Start: pos, Len: part, Chunk: int32(ci), Off: uint32(co)})
			pos += part
			length -= part
			co += uint64(part)
		}
	}
	if pos != s.Len {
		return fmt.Errorf("%w: runs cover %d of %d bytes", errSegment, pos, s.Len)
	}
	return nil
}
