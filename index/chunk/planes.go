package chunk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// Numbers in bfloat16, two bytes each, keep sign and exponent in the high byte and noise in the low one. Byte-wise
// compressors find nothing in them. Taken apart, fifteen values make up nearly all high bytes of weights, so that four
// bits a number do, and the rest are named in full. A chunk in this form is
//
//	15 bytes, the common values | u32 number of others | a nibble for each number | low bytes | the others
//
// where nibble 15 stands for the next of the others. A Huffman code over the high bytes saved 31 % of weights where
// this saves 25, at 0.35 GB/s a core: a dump was bound by it.

const (
	planeCommon = 15
	planeHead   = planeCommon + 4
)

// commonHigh gives the fifteen most frequent high bytes in samples of content, and whether they are frequent enough to
// spare an eighth of it.
func commonHigh(content []byte) (common [planeCommon]byte, pays bool) {
	var hist [256]uint32
	var total uint32
	for off := 0; off < len(content); off += probeStep {
		sample := content[off:min(off+probeLen, len(content))]
		for i := 1; i < len(sample); i += 2 {
			hist[sample[i]]++
		}
		total += uint32(len(sample) / 2)
	}
	var covered uint32
	for i := range common {
		best := 0
		for b, n := range hist {
			if n > hist[best] {
				best = b
			}
		}
		common[i] = byte(best)
		covered += hist[best]
		hist[best] = 0
	}
	return common, covered >= total/5*4
}

// blockNumbers is how many numbers the vector instructions take at a time, stripBlocks how many blocks are done before
// their masks are looked at.
const (
	blockNumbers = 32
	stripBlocks  = 64
)

// planeTable finds the nibble of a high byte: starting from planeCommon, flip is applied where equal matches.
type planeTable struct {
	equal, flip [planeCommon][blockNumbers]byte
}

func newPlaneTable(code *[256]byte, common *[planeCommon]byte) *planeTable {
	t := new(planeTable)
	for k, b := range common {
		// Of equal values, which samples of few different ones give, the last counts.
		flip := byte(0)
		if int(code[b]) == k {
			flip = planeCommon ^ byte(k)
		}
		for i := range t.equal[k] {
			t.equal[k][i], t.flip[k][i] = b, flip
		}
	}
	return t
}

// encodePlanes gives content in planes, in scratch, or nil where it cannot be or is no better.
func encodePlanes(content []byte, common [planeCommon]byte, scratch []byte) []byte {
	if len(content)%8 != 0 || len(content) == 0 {
		return nil
	}
	half := len(content) / 2
	size := planeHead + half/2 + half
	if cap(scratch) < size+half {
		scratch = make([]byte, size+half)
	}
	out := scratch[:size+half]
	var code [256]byte
	for i := range code {
		code[i] = planeCommon
	}
	for i, b := range common {
		code[b] = byte(i)
	}
	copy(out, common[:])
	nibbles, low, others := out[planeHead:planeHead+half/2], out[planeHead+half/2:size], out[size:size]
	limit := half / 4 // of others, beyond which less than an eighth is saved
	if haveBlocks {
		t := newPlaneTable(&code, &common)
		var masks [stripBlocks]uint32
		for {
			n := min(len(content)/(2*blockNumbers), stripBlocks)
			if n == 0 {
				break
			}
			splitBlocks(&content[0], n, t, &nibbles[0], &low[0], &masks[0])
			for i, m := range masks[:n] {
				for block := content[i*2*blockNumbers:]; m != 0; m &= m - 1 {
					others = append(others, block[2*bits.TrailingZeros32(m)+1])
				}
			}
			if len(others) > limit {
				return nil
			}
			content, nibbles, low = content[n*2*blockNumbers:], nibbles[n*blockNumbers/2:], low[n*blockNumbers:]
		}
	}
	for len(content) >= 8 {
		x := binary.LittleEndian.Uint64(content)
		high := [4]byte{byte(x >> 8), byte(x >> 24), byte(x >> 40), byte(x >> 56)}
		a, b, c, d := code[high[0]], code[high[1]], code[high[2]], code[high[3]]
		nibbles[0], nibbles[1] = a|b<<4, c|d<<4
		binary.LittleEndian.PutUint32(low, gather(x))
		for i, k := range [4]byte{a, b, c, d} {
			if k == planeCommon {
				others = append(others, high[i])
			}
		}
		if len(others) > limit {
			return nil
		}
		content, nibbles, low = content[8:], nibbles[2:], low[4:]
	}
	binary.LittleEndian.PutUint32(out[planeCommon:], uint32(len(others)))
	return out[:size+len(others)]
}

var errPlanes = errors.New("malformed planes")

// decodePlanes fills dst, of the content's length, from what encodePlanes wrote.
func decodePlanes(stored, dst []byte) error {
	half := len(dst) / 2
	size := planeHead + half/2 + half
	if len(dst)%8 != 0 || len(stored) < size ||
		int64(binary.LittleEndian.Uint32(stored[planeCommon:])) != int64(len(stored)-size) {
		return fmt.Errorf("%w: %d bytes for a chunk of %d", errPlanes, len(stored), len(dst))
	}
	var value [16]byte
	copy(value[:], stored[:planeCommon])
	nibbles, low, others := stored[planeHead:planeHead+half/2], stored[planeHead+half/2:size], stored[size:]
	if haveBlocks {
		var masks [stripBlocks]uint32
		for n := min(len(dst)/(2*blockNumbers), stripBlocks); n > 0; n = min(len(dst)/(2*blockNumbers), stripBlocks) {
			joinBlocks(&dst[0], &nibbles[0], &low[0], n, &value, &masks[0])
			for i, m := range masks[:n] {
				for block := dst[i*2*blockNumbers:]; m != 0; m &= m - 1 {
					if len(others) == 0 {
						return errPlanes
					}
					block[2*bits.TrailingZeros32(m)+1], others = others[0], others[1:]
				}
			}
			dst, nibbles, low = dst[n*2*blockNumbers:], nibbles[n*blockNumbers/2:], low[n*blockNumbers:]
		}
	}
	for len(dst) >= 8 {
		var high uint32
		for i := range 4 {
			k := nibbles[i/2] >> (4 * (i & 1)) & 15
			v := value[k]
			if k == planeCommon {
				if len(others) == 0 {
					return errPlanes
				}
				v, others = others[0], others[1:]
			}
			high |= uint32(v) << (8 * i)
		}
		binary.LittleEndian.PutUint64(dst, spread(binary.LittleEndian.Uint32(low))|spread(high)<<8)
		dst, nibbles, low = dst[8:], nibbles[2:], low[4:]
	}
	if len(others) > 0 {
		return errPlanes
	}
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
