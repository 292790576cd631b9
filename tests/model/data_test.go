package model

import (
	"math/rand/v2"
	"sync"
)

const (
	patterns    = 24
	patternSize = 256 << 10
)

// pattern gives the bytes that stores of a program have in common, so that what one checkpoint holds another finds
// stored. Some compress, some have pages of zeros.
var pattern = sync.OnceValue(func() (out [patterns][]byte) {
	for i := range out {
		r := rand.NewChaCha8([32]byte{byte(i)})
		b := make([]byte, patternSize)
		r.Read(b)
		if i%3 == 1 {
			for k := range b {
				b[k] &= 3
			}
		}
		if i%4 == 2 {
			for page := 0; page < len(b); page += 4096 {
				if b[page]%3 == 0 {
					clear(b[page : page+4096])
				}
			}
		}
		out[i] = b
	}
	return out
})

// data gives n bytes; equal seeds begin alike.
func data(seed uint64, n int64) []byte {
	return pattern()[seed%patterns][:min(n, patternSize)]
}

// mix gives a number that depends on all of parts and looks like chance.
func mix(parts ...uint64) uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	for _, p := range parts {
		h ^= p + 0x9e3779b97f4a7c15 + h<<6 + h>>2
		h *= 0xbf58476d1ce4e5b9
		h ^= h >> 29
	}
	return h
}

// overlay gives content with p at off; a gap is zeros.
func overlay(content, p []byte, off int64) []byte {
	out := make([]byte, max(int64(len(content)), off+int64(len(p))))
	copy(out, content)
	copy(out[off:], p)
	return out
}

// resized gives content cut, or grown with zeros.
func resized(content []byte, size int64) []byte {
	out := make([]byte, size)
	copy(out, content)
	return out
}
