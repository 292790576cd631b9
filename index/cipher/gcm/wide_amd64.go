package gcm

import "github.com/klauspost/cpuid/v2"

// wide: the processor can work on vectors of 256 bits.
var wide = cpuid.CPU.Supports(cpuid.AESNI, cpuid.AVX2, cpuid.VAES, cpuid.VPCLMULQDQ)

// expand gives the keys of the rounds.
//
//go:noescape
func expand(rounds *[15 * block]byte, key *[KeySize]byte)

// ctr adds the key stream from a counter block on to n bytes, a multiple of group and not 0.
//
//go:noescape
func ctr(dst, src *byte, n int, rounds *[15 * block]byte, counter *[block]byte)

// ghash adds n bytes to the hash, a multiple of group and not 0.
//
//go:noescape
func ghash(state *[block]byte, powers *[2 * group]byte, p *byte, n int)
