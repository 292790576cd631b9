package kfdsim

import (
	"encoding/binary"
	"log/slog"
	"os"
	"testing"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// fuzzVM is an address space with one BO of a page at vaBO, of no file.
func fuzzVM() *access {
	s := &Sim{log: slog.New(slog.DiscardHandler), bos: map[uint64]*bo{}}
	g := &gpu{sim: s, cfg: GPU{ID: 1}, model: Models["mi210"]}
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
	seed(5, append([]uint32{1 | sdmaCopyCPV}, append(copyPacket(vaBO, vaBO+2048, 1023)[1:], 0)...)...) // v7
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

// Private data that no driver wrote is refused or taken, never believed.
func FuzzRestoreObjects(f *testing.F) {
	signal := appendStruct(nil, &abi.KFDPrivEvent{ObjectType: abi.KFDPrivObjectEvent, EventID: 3})
	aql := appendStruct(nil, &abi.KFDPrivQueue{ObjectType: abi.KFDPrivObjectQueue, GPUID: 1, QAddress: vaBO,
		QSize:       pageSize,
		ReadPtrAddr: vaBO, WritePtrAddr: vaBO, QID: 1, MQDSize: mqdComputeSize, Format: abi.KFDPrivQueueFormatAQL})
	aql = append(aql, appendStruct(nil, &mqd{Magic: mqdMagic})...)
	long := appendStruct(nil, &abi.KFDPrivQueue{ObjectType: abi.KFDPrivObjectQueue, GPUID: 1, MQDSize: mqdComputeSize,
		CtlStackSize: 1<<32 - mqdComputeSize, Format: abi.KFDPrivQueueFormatAQL})
	f.Add(append(signal, aql...))
	f.Add(append(aql, make([]byte, mqdComputeSize)...))
	f.Add(long)
	f.Add(appendStruct(nil, &abi.KFDPrivSVMRange{ObjectType: abi.KFDPrivObjectSVMRange, StartAddr: pageSize,
		Size: pageSize}))
	pages, err := newArena("fuzz", kfdArenaSize)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(pages.close)
	f.Fuzz(func(t *testing.T, priv []byte) {
		a := fuzzVM()
		s, g := a.sim, a.vm.gpu
		s.kfd, s.gpus, s.procs, s.slots = pages, []*gpu{g}, map[int]*kfdProcess{}, map[int]*kfdProcess{}
		p := &kfdProcess{sim: s, pid: os.Getpid(), vpid: os.Getpid(), gone: make(chan struct{}),
			queues: map[uint32]*queue{}, events: newEventTable(), evictions: 1}
		p.pdds = []*pdd{{proc: p, gpu: g, userID: 1, mem: map[int]*kfdMem{}, drm: &drmFile{gpu: g, vm: a.vm, refs: 1}}}
		p.pdds[0].ensureDoorbells()
		for errno := error(nil); errno == nil && len(priv) > 0; {
			rest, e := p.restoreObject(priv)
			if e != 0 {
				errno = e
			} else if len(rest) >= len(priv) {
				t.Fatal("object of no length")
			}
			priv = rest
		}
		p.teardown()
		s.wg.Wait()
	})
}
