package kfdsim

import (
	"fmt"
	"syscall"
)

// boKind is where a BO's bytes are.
type boKind int

const (
	boVRAM boKind = iota
	boGTT
	boUserptr  // pages of a process
	boDoorbell // the doorbell page of a process on a GPU
	boMMIO     // the register page
)

func (k boKind) String() string {
	return [...]string{"vram", "gtt", "userptr", "doorbell", "mmio"}[k]
}

// bo is a buffer object. All fields but holds and dmabuf are fixed once it is
// made; those are guarded by Sim.mu.
type bo struct {
	id   uint64
	gpu  *gpu
	kind boKind
	size uint64
	off  uint64 // offset for mmap: on the render node, on /dev/kfd for doorbell and MMIO
	mem  []byte // nil for userptr
	user userRange
	// noCPU forbids GEM_MMAP: allocated without the PUBLIC flag or with
	// NO_CPU_ACCESS.
	noCPU bool
	// freed, of a doorbell page, is closed when its memory is given back.
	freed chan struct{}
	// domains and gemFlags are what GEM_OP and GEM_LIST_HANDLES report.
	domains, gemFlags uint64

	// lost, of a userptr, says that the driver could not look its pages up: an access is
	// a fault from then on.
	lost bool

	// missing is what a RESTORE left to be filled.
	missing gaps

	holds  int
	dmabuf *dmabuf
}

// userRange is memory of a process.
type userRange struct {
	pid  int
	addr uint64
}

// newBO allocates VRAM or GTT memory and holds it once. errno is ENOMEM when
// the GPU has no such memory left.
//
// Preconditions: Sim.mu is held, size is a multiple of the page size.
func (s *Sim) newBO(g *gpu, kind boKind, size uint64) (*bo, syscall.Errno) {
	used, limit := &g.vramUsed, g.cfg.VRAM
	if kind == boGTT {
		used, limit = &g.gttUsed, g.cfg.GTT
	}
	if size > limit || *used > limit-size {
		return nil, s.refuse(syscall.ENOMEM, "no memory left", "gpu", g.cfg.ID, "kind", kind, "size", size, "used",
			*used, "limit", limit)
	}
	off, mem, err := g.arena.alloc(size)
	if err != nil {
		return nil, s.refuse(syscall.ENOMEM, err.Error(), "gpu", g.cfg.ID)
	}
	*used += size
	return s.addBO(&bo{gpu: g, kind: kind, size: size, off: off, mem: mem}), 0
}

// addBO registers a BO and holds it once.
//
// Preconditions: Sim.mu is held.
func (s *Sim) addBO(b *bo) *bo {
	s.lastBO++
	b.id = s.lastBO
	b.holds = 1
	s.bos[b.id] = b
	return b
}

// get holds a BO. Preconditions: Sim.mu is held.
func (b *bo) get() *bo { b.holds++; return b }

// putBO drops a hold and the BO with the last one. Its memory is given back by
// unlock, after Sim.mu.
//
// Preconditions: Sim.mu is held.
func (s *Sim) putBO(b *bo) {
	if b.holds <= 0 {
		panic(fmt.Sprintf("kfdsim: bo %d put once too often", b.id))
	}
	if b.holds--; b.holds > 0 {
		return
	}
	delete(s.bos, b.id)
	switch b.kind {
	case boVRAM:
		b.gpu.vramUsed -= b.size
		s.garbage = append(s.garbage, b)
	case boGTT:
		b.gpu.gttUsed -= b.size
		s.garbage = append(s.garbage, b)
	case boDoorbell:
		s.garbage = append(s.garbage, b)
	}
}

// unlock releases Sim.mu, then the memory of the BOs that went meanwhile.
func (s *Sim) unlock() {
	garbage := s.garbage
	s.garbage = nil
	s.mu.Unlock()
	for _, b := range garbage {
		a := b.gpu.arena
		if b.kind == boDoorbell {
			a = s.kfd
		}
		if err := a.free(b.off, b.mem); err != nil {
			s.log.Error("free bo", "bo", b.id, "err", err)
		}
		if b.freed != nil {
			close(b.freed)
		}
	}
}

// pageAlign rounds up to whole pages.
func pageAlign(n uint64) uint64 { return (n + pageSize - 1) &^ (pageSize - 1) }
