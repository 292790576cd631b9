package chunk

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Numbers in bfloat16, two bytes each, keep sign and exponent in the high byte and noise in the low one. Byte-wise compressors find nothing in them. Taken apart,
// fifteen values make up nearly all high bytes of weights, so that four bits a number do, and the rest are named in full. A chunk in this form is
//
//	15 bytes, the common values | u32 number of others | a nibble for each number | low bytes | the others
//
// where nibble 15 stands for the next of the others. A Huffman code over the high bytes saved 31 % of weights where this saves 25, at 0.35 GB/s a core: a dump was bound
// by it.

const (
	planeCommon = 15
	planeHead   = planeCommon + 4
)

// commonHigh gives the fifteen most frequent high bytes in samples of content, and whether they are frequent enough to spare an eighth of it.
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
	for len(content) >= 8 {
		x := binary.LittleEndian.Uint64(content)
		a, b, c, d := byte(x>>8), byte(x>>24), byte(x>>40), byte(x>>56)
		ca, cb, cc, cd := code[a], code[b], code[c], code[d]
		nibbles[0], nibbles[1] = ca|cb<<4, cc|cd<<4
		binary.LittleEndian.PutUint32(low, gather(x))
		if ca == planeCommon || cb == planeCommon || cc == planeCommon || cd == planeCommon {
			for _, s := range [4][2]byte{{ca, a}, {cb, b}, {cc, c}, {cd, d}} {
				if s[0] == planeCommon {
					others = append(others, s[1])
				}
			}
			if len(others) > limit {
				return nil
			}
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
	if len(dst)%8 != 0 || len(stored) < size || int64(binary.LittleEndian.Uint32(stored[planeCommon:])) != int64(len(stored)-size) {
		return fmt.Errorf("%w: %d bytes for a chunk of %d", errPlanes, len(stored), len(dst))
	}
	var value [16]byte
	copy(value[:], stored[:planeCommon])
	var pair [256]uint32 // two nibbles → two bytes; bit 16 set where one of them is another value
	for i := range pair {
		pair[i] = uint32(value[i&15]) | uint32(value[i>>4])<<8
		if i&15 == planeCommon || i>>4 == planeCommon {
			pair[i] |= 1 << 16
		}
	}
	nibbles, low, others := stored[planeHead:planeHead+half/2], stored[planeHead+half/2:size], stored[size:]
	for len(dst) >= 8 {
		a, b := pair[nibbles[0]], pair[nibbles[1]]
		high := a&0xffff | b<<16
		if (a|b)>>16 != 0 {
			for i := range 4 {
				if nibbles[i/2]>>(4*(i&1))&15 == planeCommon {
					if len(others) == 0 {
						return errPlanes
					}
					high = high&^(0xff<<(8*i)) | uint32(others[0])<<(8*i)
					others = others[1:]
				}
			}
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
