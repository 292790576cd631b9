package chunk

import (
	"fmt"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// Codec says how a stored chunk is encoded. The numbers are part of the on-disk format.
type Codec uint8

const (
	Raw    Codec = 0 // content as it is
	S2     Codec = 1 // one s2 block
	Zstd   Codec = 2 // one zstd frame
	Planes Codec = 3 // high and low bytes of 16-bit numbers apart, see planes.go
)

func (c Codec) String() string {
	switch c {
	case Raw:
		return "raw"
	case S2:
		return "s2"
	case Zstd:
		return "zstd"
	case Planes:
		return "planes"
	}
	return fmt.Sprintf("codec %d", uint8(c))
}

// Policy says which codecs Encode may try.
type Policy uint8

const (
	PolicyAuto Policy = iota // s2, planes or nothing, by a probe
	PolicyZstd
	PolicyS2
	PolicyNone
)

// Coder encodes and decodes chunks. It is safe for concurrent use.
type Coder struct {
	enc *zstd.Encoder
	dec *zstd.Decoder
}

// NewCoder makes a coder for up to workers goroutines at once; more of them wait. maxLen bounds the length of a decoded
// chunk.
func NewCoder(workers, maxLen int) (*Coder, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(workers),
		zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, err
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(workers),
		zstd.WithDecoderMaxMemory(uint64(max(maxLen, 1<<20))), zstd.IgnoreChecksum(true))
	if err != nil {
		return nil, err
	}
	return &Coder{enc: enc, dec: dec}, nil
}

// Close releases the coder's goroutines.
func (c *Coder) Close() {
	c.enc.Close()
	c.dec.Close()
}

// MaxEncoded is the capacity scratch needs in Encode for a chunk of n bytes.
func MaxEncoded(n int) int { return max(s2.MaxEncodedLen(n), n+n/4+64) }

// Encode gives content in its smallest worthwhile form: content itself with codec Raw, or a slice of scratch.
func (c *Coder) Encode(p Policy, content, scratch []byte) ([]byte, Codec) {
	if len(content) <= PageSize || p == PolicyNone {
		return content, Raw
	}
	var out []byte
	var codec Codec
	switch {
	case p == PolicyZstd:
		out, codec = c.enc.EncodeAll(content, scratch[:0]), Zstd
	case p == PolicyS2, promising(content):
		out, codec = s2.Encode(scratch[:cap(scratch)], content), S2
	default:
		if common, pays := commonHigh(content); pays {
			out, codec = encodePlanes(content, common, scratch), Planes
		}
	}
	if out == nil {
		return content, Raw
	}
	if len(out) > len(content)-len(content)/8 || pages(len(out)) >= pages(len(content)) {
		return content, Raw
	}
	return out, codec
}

func pages(n int) int { return (n + PageSize - 1) / PageSize }

// Probe positions: probes of probeLen bytes, one every probeStep. At 1/8 of the content the probe of an incompressible
// chunk costs 2 % of hashing it.
const (
	probeLen  = PageSize
	probeStep = 8 * PageSize
)

// promising says whether samples of content compress by an eighth or more.
func promising(content []byte) bool {
	var in, out int
	for off := 0; off < len(content); off += probeStep {
		sample := content[off:min(off+probeLen, len(content))]
		n := s2.EstimateBlockSize(sample)
		if n < 0 || n > len(sample) {
			n = len(sample)
		}
		in += len(sample)
		out += n
	}
	return out <= in-in/8
}

// Decode appends the content of a stored chunk to dst[:0], which needs capacity for want bytes, and fails unless
// exactly want bytes come out.
func (c *Coder) Decode(codec Codec, stored, dst []byte, want int) ([]byte, error) {
	switch codec {
	case Raw:
		if len(stored) != want {
			return nil, fmt.Errorf("raw chunk has %d bytes, not %d", len(stored), want)
		}
		return append(dst[:0], stored...), nil
	case S2:
		if n, err := s2.DecodedLen(stored); err != nil || n != want {
			return nil, fmt.Errorf("s2 chunk announces %d bytes, not %d (%v)", n, want, err)
		}
		return s2.Decode(dst[:want], stored)
	case Planes:
		return dst[:want], decodePlanes(stored, dst[:want])
	case Zstd:
		out, err := c.dec.DecodeAll(stored, dst[:0])
		if err != nil {
			return nil, err
		}
		if len(out) != want {
			return nil, fmt.Errorf("zstd chunk has %d bytes, not %d", len(out), want)
		}
		return out, nil
	}
	return nil, fmt.Errorf("unknown %v: written by a later version", codec)
}
