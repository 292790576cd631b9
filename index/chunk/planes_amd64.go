package chunk

import "golang.org/x/sys/cpu"

var haveBlocks = cpu.X86.HasAVX2

// joinBlocks writes blocks of 32 numbers to dst, 64 bytes each, from 16 bytes of nibbles and 32 low bytes each, and a
// mask for each: bit i is set where nibble i is planeCommon and values[planeCommon] has been written in place of the
// high byte. blocks is at least 1.
//
//go:noescape
func joinBlocks(dst, nibbles, low *byte, blocks int, values *[16]byte, masks *uint32)

// splitBlocks undoes joinBlocks; bit i of a mask is set where the high byte of number i is none of the table's.
//
//go:noescape
func splitBlocks(content *byte, blocks int, t *planeTable, nibbles, low *byte, masks *uint32)
