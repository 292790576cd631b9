package chunk

import (
	"bytes"
	"math"

	"github.com/zeebo/xxh3"
)

// MinGap is the length in bytes of the shortest zero run that ends a chunk of at least the minimum size.
const MinGap = 16 * PageSize

var zeroPage [PageSize]byte

// IsZero says whether p, of at most PageSize bytes, holds zeros only. bytes.Equal runs at memory speed (30 GB/s
// measured).
func IsZero(p []byte) bool { return bytes.Equal(p, zeroPage[:len(p)]) }

// Splitter decides where the data stream of one file is cut. It holds no data. The zero value is not usable; one
// goroutine at a time.
type Splitter struct {
	params          Params
	strict, lenient uint64
	size            int // bytes of the chunk being built
	gap             int // length of the zero run just seen
}

// NewSplitter returns a splitter at the start of a chunk. The parameters must be valid.
func NewSplitter(p Params) *Splitter {
	pages := float64(p.Avg) / PageSize
	return &Splitter{params: p, strict: threshold(1.5 * pages), lenient: threshold(0.375 * pages)}
}

// threshold gives the bound under which one hash of n falls on average.
func threshold(n float64) uint64 { return uint64(math.MaxUint64 / max(n, 1)) }

// Zero tells of n zero bytes in the stream and says whether the chunk being built ends before them.
func (s *Splitter) Zero(n int) (cutBefore bool) {
	s.gap += n
	if s.gap >= MinGap && s.size >= s.params.Min {
		s.size = 0
		return true
	}
	return false
}

// Data tells of one page (the last one may be short) that joins the chunk being built, and says whether the chunk ends
// after it.
func (s *Splitter) Data(page []byte) (cutAfter bool) {
	s.gap = 0
	s.size += len(page)
	if s.size < s.params.Min {
		return false
	}
	bound := s.lenient
	if s.size < s.params.Avg {
		bound = s.strict
	}
	if s.size >= s.params.Max || xxh3.Hash(page) < bound {
		s.size = 0
		return true
	}
	return false
}

// Reset starts a new chunk: the caller cut for a reason of its own.
func (s *Splitter) Reset() { s.size, s.gap = 0, 0 }
