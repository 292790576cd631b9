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

// newBO allocates VRAM or GTT memory and holds it once. Where there is none, it waits for what is being wiped, without
// Sim.mu. errno is ENOMEM when the GPU has no such memory left.
//
// Preconditions: Sim.mu is held, size is a multiple of the page size.
func (s *Sim) newBO(g *gpu, kind boKind, size uint64) (*bo, syscall.Errno) {
	used, limit := &g.vramUsed, g.cfg.VRAM
	if kind == boGTT {
		used, limit = &g.gttUsed, g.cfg.GTT
	}
	for g.wiping && size <= limit && (*used > limit-size || !g.arena.pool.room(size)) {
		s.wiped.Wait()
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

// putBO drops a hold and the BO with the last one. Its memory is wiped and given back in the background, or by unlock
// after Sim.mu for a doorbell page.
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
	case boVRAM, boGTT:
		if b.kind == boGTT {
			b.gpu.gttUsed -= b.size
		}
		b.gpu.released = append(b.gpu.released, b)
		if !b.gpu.wiping {
			b.gpu.wiping = true
			s.wg.Go(b.gpu.wipe)
		}
	case boDoorbell:
		s.garbage = append(s.garbage, b)
	}
}

// wipe gives back the memory of released BOs until there are none. As with the driver, nobody who frees memory waits
// for it: amdgpu_bo_release_notify has an SDMA engine fill the VRAM, TTM destroys the BO when that fence has signalled
// (ttm_bo_delayed_delete), and until then the VRAM counts as used. An allocation that finds none waits for that.
func (g *gpu) wipe() {
	s := g.sim
	s.mu.Lock()
	defer s.unlock()
	for len(g.released) > 0 {
		b := g.released[0]
		g.released = g.released[1:]
		s.unlock()
		if err := g.arena.free(b.off, b.mem); err != nil {
			s.log.Error("free bo", "bo", b.id, "err", err)
		}
		s.mu.Lock()
		if b.kind == boVRAM {
			g.vramUsed -= b.size
		}
		s.wiped.Broadcast()
	}
	g.released, g.wiping = nil, false
	s.wiped.Broadcast()
}

// unlock releases Sim.mu, then the doorbell pages that went meanwhile.
func (s *Sim) unlock() {
	garbage := s.garbage
	s.garbage = nil
	s.mu.Unlock()
	for _, b := range garbage {
		if err := s.kfd.free(b.off, b.mem); err != nil {
			s.log.Error("free bo", "bo", b.id, "err", err)
		}
		close(b.freed)
	}
}

// pageAlign rounds up to whole pages.
func pageAlign(n uint64) uint64 { return (n + pageSize - 1) &^ (pageSize - 1) }
