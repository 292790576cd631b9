package crc32c

import "golang.org/x/sys/cpu"

var canFold = cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VPCLMULQDQ

// fold leaves in rest what has the remainder of n bytes from p on, to the first four of which state is added. n is a
// multiple of block, and not 0.
//
//go:noescape
func fold(rest *[block]byte, p *byte, n int, state uint32)
