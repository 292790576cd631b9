package chunk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/klauspost/compress/huff0"
)

// Numbers in bfloat16, two bytes each, keep sign and exponent in the high byte and noise in the low one. Byte-wise compressors find nothing in them; taken apart, the high
// bytes of weights need 3 bits or less. A chunk in this form is
//
//	u8 number of blocks | per block: u8 kind, u24 length, bytes | low bytes
//
// where the blocks are the high bytes, blockLen at a time, Huffman-coded (kind 1), one byte repeated (2) or as they are (0).

const (
	blockLen     = 128 << 10
	blockRaw     = 0
	blockHuff    = 1
	blockRepeat  = 2
	planesMaxLen = 255 * 2 * blockLen
)

// planesPay says whether samples of content look like bfloat16: high bytes of at most six bits of entropy spare an eighth of the whole.
func planesPay(content []byte) bool {
	var hist [256]uint32
	total := 0
	for off := 0; off < len(content); off += probeStep {
		sample := content[off:min(off+probeLen, len(content))]
		for i := 1; i < len(sample); i += 2 {
			hist[sample[i]]++
		}
		total += len(sample) / 2
	}
	var bits float64
	for _, n := range hist {
		if n > 0 {
			bits += float64(n) * math.Log2(float64(total)/float64(n))
		}
	}
	// A little below six bits, for the code's loss and its tables.
	return bits < 5.8*float64(total)
}

// encodePlanes gives content in planes, in scratch, or nil where it is no better.
func encodePlanes(content, scratch []byte) []byte {
	if len(content)%8 != 0 || len(content) > planesMaxLen {
		return nil
	}
	half := len(content) / 2
	w := planeWork(2 * half)
	defer workPool.Put(w)
	high, low := w.buf[:half], w.buf[half:2*half]
	deinterleave(content, high, low)
	blocks := (half + blockLen - 1) / blockLen
	out := append(scratch[:0], byte(blocks))
	for i := range blocks {
		b := high[i*blockLen : min((i+1)*blockLen, half)]
		coded, _, err := huff0.Compress4X(b, &w.huff)
		switch {
		case err == nil:
			out = appendBlock(out, blockHuff, len(coded))
			out = append(out, coded...)
		case errors.Is(err, huff0.ErrUseRLE):
			out = appendBlock(out, blockRepeat, 1)
			out = append(out, b[0])
		default:
			out = appendBlock(out, blockRaw, len(b))
			out = append(out, b...)
		}
	}
	return append(out, low...)
}

// planeScratch is what taking a chunk apart, or putting it together, needs for a moment.
type planeScratch struct {
	buf  []byte
	huff huff0.Scratch
}

var workPool = sync.Pool{New: func() any { return &planeScratch{huff: huff0.Scratch{Reuse: huff0.ReusePolicyNone}} }}

func planeWork(n int) *planeScratch {
	w := workPool.Get().(*planeScratch)
	if cap(w.buf) < n {
		w.buf = make([]byte, n)
	}
	w.buf = w.buf[:n]
	return w
}

func appendBlock(out []byte, kind byte, n int) []byte {
	return append(out, kind, byte(n), byte(n>>8), byte(n>>16))
}

var errPlanes = errors.New("malformed planes")

// decodePlanes fills dst, of the content's length, from what encodePlanes wrote.
func decodePlanes(stored, dst []byte) error {
	half := len(dst) / 2
	if len(dst)%8 != 0 || len(stored) < 1 || int(stored[0]) != (half+blockLen-1)/blockLen {
		return fmt.Errorf("%w: %d bytes for a chunk of %d", errPlanes, len(stored), len(dst))
	}
	blocks := int(stored[0])
	stored = stored[1:]
	w := planeWork(half)
	defer workPool.Put(w)
	high := w.buf[:0:half]
	for i := range blocks {
		want := min(blockLen, half-i*blockLen)
		if len(stored) < 4 {
			return errPlanes
		}
		kind, n := stored[0], int(stored[1])|int(stored[2])<<8|int(stored[3])<<16
		stored = stored[4:]
		if n > len(stored) {
			return errPlanes
		}
		b := stored[:n]
		stored = stored[n:]
		switch {
		case kind == blockRaw && n == want:
			high = append(high, b...)
		case kind == blockRepeat && n == 1:
			for range want {
				high = append(high, b[0])
			}
		case kind == blockHuff:
			s, rest, err := huff0.ReadTable(b, &w.huff)
			if err != nil {
				return fmt.Errorf("%w: %v", errPlanes, err)
			}
			at := len(high)
			got, err := s.Decoder().Decompress4X(high[at:at:at+want], rest)
			if err != nil || len(got) != want {
				return fmt.Errorf("%w: %v", errPlanes, err)
			}
			high = high[:at+copy(high[at:at+want], got)]
		default:
			return errPlanes
		}
	}
	if len(stored) != half {
		return fmt.Errorf("%w: %d low bytes, not %d", errPlanes, len(stored), half)
	}
	interleave(high, stored, dst)
	return nil
}

const everyOther = 0x00ff00ff00ff00ff

// gather brings the even bytes of x together.
func gather(x uint64) uint32 {
	x &= everyOther
	x = (x | x>>8) & 0x0000ffff0000ffff
	return uint32(x | x>>16)
}

// spread undoes gather.
func spread(v uint32) uint64 {
	x := uint64(v)
	x = (x | x<<16) & 0x0000ffff0000ffff
	return (x | x<<8) & everyOther
}

// deinterleave takes src, whose length is a multiple of 8, apart, eight bytes at a time.
func deinterleave(src, high, low []byte) {
	for len(src) >= 8 {
		x := binary.LittleEndian.Uint64(src)
		binary.LittleEndian.PutUint32(low, gather(x))
		binary.LittleEndian.PutUint32(high, gather(x>>8))
		src, high, low = src[8:], high[4:], low[4:]
	}
}

// interleave undoes deinterleave.
func interleave(high, low, dst []byte) {
	for len(dst) >= 8 {
		x := spread(binary.LittleEndian.Uint32(low)) | spread(binary.LittleEndian.Uint32(high))<<8
		binary.LittleEndian.PutUint64(dst, x)
		dst, high, low = dst[8:], high[4:], low[4:]
	}
}
