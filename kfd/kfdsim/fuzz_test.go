package kfdsim

import (
	"encoding/binary"
	"log/slog"
	"testing"
)

// fuzzVM is an address space with one BO of a page at vaBO, of no file.
func fuzzVM() *access {
	s := &Sim{log: slog.New(slog.DiscardHandler), bos: map[uint64]*bo{}}
	g := &gpu{sim: s, cfg: GPU{ID: 1}}
	b := s.addBO(&bo{gpu: g, kind: boMMIO, size: pageSize, mem: make([]byte, pageSize)})
	v := &vm{gpu: g}
	s.mapBO(v, mapping{va: vaBO, size: pageSize, bo: b, prot: vmRead | vmWrite})
	return &access{sim: s, vm: v}
}

// Whatever an indirect buffer holds, the interpreter ends, touches mapped
// memory alone, and drops what it held.
func FuzzSDMA(f *testing.F) {
	le := binary.LittleEndian
	seed := func(version uint8, words ...uint32) {
		var b []byte
		for _, w := range words {
			b = le.AppendUint32(b, w)
		}
		f.Add(version, b)
	}
	lo, hi := uint32(vaBO&(1<<32-1)), uint32(vaBO>>32)
	seed(4, copyPacket(vaBO, vaBO+2048, 1023)...)
	seed(3, copyPacket(vaBO, vaBO+2048, 1024)...)
	seed(7, append(copyPacket(vaBO, vaBO+2048, 1023), 0)...)
	seed(4, 11|2<<30, lo, hi, 0xdeadbeef, 4095)
	seed(4, 2, lo, hi, 1, 7, 8)
	seed(4, 5, lo, hi, 9, 6, 0, 0|3<<16, 0, 0, 0)
	seed(4, 8|1<<31|3<<28, lo, hi, 0, 0xff, 0)
	seed(4, 10|0x2f<<25, lo, hi, 1, 0, 0, 0, 0)
	f.Fuzz(func(t *testing.T, version uint8, ib []byte) {
		a := fuzzVM()
		x := sdmaRun{access: a, version: SDMAv2 + SDMAVersion(version%6)}
		_ = x.run(ib)
		if n := a.vm.maps[0].bo.holds; n != 2 {
			t.Errorf("bo held %d times after the run", n)
		}
	})
}
