package drm

import (
	"encoding/binary"
	"fmt"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// generation is a generation of SDMA packets, after the IP versions of the
// driver's sdma_v*.c; the CIK's is 2.
type generation int

// Bounds of the generations known here.
const (
	firstGeneration generation = 2
	lastGeneration  generation = 7
)

// generationOf picks the packets for a family, and for the IP version that the
// driver reports: Iceland has the packets of its predecessors, and families
// newer than this table may have packets that it knows.
func generationOf(family, major uint32) (generation, error) {
	if g := generation(major); g >= firstGeneration && g <= lastGeneration {
		return g, nil
	}
	switch family {
	case abi.AMDGPUFamilyCI, abi.AMDGPUFamilyKV:
		return 2, nil
	case abi.AMDGPUFamilyVI, abi.AMDGPUFamilyCZ:
		return 3, nil
	case abi.AMDGPUFamilyAI, abi.AMDGPUFamilyRV:
		return 4, nil
	case abi.AMDGPUFamilyNV, abi.AMDGPUFamilyVGH, abi.AMDGPUFamilyYC, abi.AMDGPUFamilyGC10_3_6,
		abi.AMDGPUFamilyGC10_3_7:
		return 5, nil
	case abi.AMDGPUFamilyGC11_0_0, abi.AMDGPUFamilyGC11_0_1, abi.AMDGPUFamilyGC11_5_0:
		return 6, nil
	case abi.AMDGPUFamilyGC12_0_0:
		return 7, nil
	}
	return 0, fmt.Errorf("gpus of family %d, sdma version %d, have packets not known here", family, major)
}

// Operations, the low byte of a packet's header.
const (
	opCopyLinear   = 1
	opConstantFill = 11
)

// Bits of a packet's header in generation 7, as the driver sets them. GFX12
// compresses memory: without the word on compression that a copy carries then, or
// the bit of a fill, data is corrupted now and then (Linux 6.12 mended its own).
const (
	copyParameterValid = 1 << 19 // CPV: the eighth dword counts
	fillCompress       = 1 << 16
)

// Sizes in bytes.
const (
	fillPacketBytes = 5 * 4
	ibAlign         = 8 * 4 // the engines fetch groups of 8 dwords
)

// maxBytes is the most that one packet copies or fills (copy_max_bytes of
// amdgpu_buffer_funcs).
func (g generation) maxBytes() uint64 {
	switch g {
	case 2:
		// A multiple of 4 below 0x1fffff, so that parts begin at dwords.
		return 0x1ffffc
	case 3:
		return 0x3fffe0
	}
	return 0x400000
}

func (g generation) copyPacketBytes() int {
	if g >= 7 {
		return 8 * 4
	}
	return 7 * 4
}

// count is the field for n bytes: one less since generation 4.
func (g generation) count(n uint64) uint32 {
	if g >= 4 {
		return uint32(n - 1)
	}
	return uint32(n)
}

// appendCopy appends one copy packet for n bytes, at most maxBytes.
func (g generation) appendCopy(ib []byte, dst, src, n uint64) []byte {
	words := [8]uint32{opCopyLinear, g.count(n), 0, uint32(src), uint32(src >> 32), uint32(dst), uint32(dst >> 32)}
	if g >= 7 {
		words[0] |= copyParameterValid
	}
	for _, w := range words[:g.copyPacketBytes()/4] {
		ib = binary.LittleEndian.AppendUint32(ib, w)
	}
	return ib
}

// appendZero appends one fill packet for n zero bytes, at most maxBytes.
func (g generation) appendZero(ib []byte, dst, n uint64) []byte {
	header := uint32(opConstantFill)
	if g >= 7 {
		header |= fillCompress
	}
	for _, w := range [5]uint32{header, uint32(dst), uint32(dst >> 32), 0, g.count(n)} {
		ib = binary.LittleEndian.AppendUint32(ib, w)
	}
	return ib
}

// pad appends NOPs, which are zero, to whole groups.
func pad(ib []byte) []byte {
	for len(ib)%ibAlign != 0 {
		ib = append(ib, 0)
	}
	return ib
}
