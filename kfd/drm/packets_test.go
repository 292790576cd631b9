package drm

import (
	"encoding/binary"
	"testing"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

func words(b []byte) []uint32 {
	out := make([]uint32, len(b)/4)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return out
}

// Packets are those of the driver's sdma_v*.c: CIK and 2.4, 3.0, 4.0 and later
// count differently, 7.0 copies with one dword more and says something of compression.
func TestPackets(t *testing.T) {
	const src, dst = 0x1_2345_6000, 0x7_8abc_d000
	for _, tc := range []struct {
		family, major uint32
		want          generation
		max           uint64
		count         uint32 // of 4096 bytes
		copyWords     int
	}{
		{abi.AMDGPUFamilyCI, 2, 2, 0x1ffffc, 4096, 7},
		{abi.AMDGPUFamilyKV, 0, 2, 0x1ffffc, 4096, 7},
		{abi.AMDGPUFamilyVI, 2, 2, 0x1ffffc, 4096, 7}, // Iceland
		{abi.AMDGPUFamilyVI, 3, 3, 0x3fffe0, 4096, 7},
		{abi.AMDGPUFamilyCZ, 0, 3, 0x3fffe0, 4096, 7},
		{abi.AMDGPUFamilyAI, 4, 4, 0x400000, 4095, 7},
		{abi.AMDGPUFamilyRV, 0, 4, 0x400000, 4095, 7},
		{abi.AMDGPUFamilyNV, 5, 5, 0x400000, 4095, 7},
		{abi.AMDGPUFamilyVGH, 0, 5, 0x400000, 4095, 7},
		{abi.AMDGPUFamilyGC11_0_0, 6, 6, 0x400000, 4095, 7},
		{abi.AMDGPUFamilyGC11_5_0, 0, 6, 0x400000, 4095, 7},
		{abi.AMDGPUFamilyGC12_0_0, 7, 7, 0x400000, 4095, 8},
		{9999, 6, 6, 0x400000, 4095, 7},
	} {
		g, err := generationOf(tc.family, tc.major)
		if err != nil || g != tc.want || g.maxBytes() != tc.max {
			t.Errorf("family %d, version %d: generation %d up to %#x, %v; want %d, %#x", tc.family, tc.major, g,
				g.maxBytes(), err, tc.want, tc.max)
			continue
		}
		c := words(g.appendCopy(nil, dst, src, 4096))
		copyHeader, fillHeader := uint32(1), uint32(11)
		if tc.want == 7 {
			copyHeader, fillHeader = 1|1<<19, 11|1<<16
		}
		want := []uint32{copyHeader, tc.count, 0, 0x23456000, 1, 0x8abcd000, 7, 0}[:tc.copyWords]
		if len(c) != len(want) {
			t.Fatalf("generation %d: copy of %d dwords", g, len(c))
		}
		for i := range want {
			if c[i] != want[i] {
				t.Errorf("generation %d: copy %#x, want %#x", g, c, want)
				break
			}
		}
		f := words(g.appendZero(nil, dst, 4096))
		if len(f) != 5 || f[0] != fillHeader || f[1] != 0x8abcd000 || f[2] != 7 || f[3] != 0 || f[4] != tc.count {
			t.Errorf("generation %d: fill %#x", g, f)
		}
		if p := pad(g.appendZero(nil, dst, 4)); len(p) != ibAlign {
			t.Errorf("padded to %d bytes", len(p))
		}
	}
	if _, err := generationOf(9999, 8); err == nil {
		t.Error("packets of a family and version not known")
	}
}
