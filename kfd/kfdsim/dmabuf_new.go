package kfdsim

import (
	"fmt"
	"os"
)

// NewDmabuf makes a BO of a GPU, VRAM or system memory, as a process of its own
// would that exported it: for tests of what imports BOs. The bytes are those
// that the GPU sees; they, and the memory, last until the last holder of the
// dma-buf is gone.
func (s *Sim) NewDmabuf(gpuID uint32, size uint64, gtt bool) (*os.File, []byte, error) {
	g := s.gpuByID(gpuID)
	if g == nil || size == 0 || size%pageSize != 0 {
		return nil, nil, fmt.Errorf("kfdsim: bo of %d bytes on gpu %#x", size, gpuID)
	}
	kind := boVRAM
	if gtt {
		kind = boGTT
	}
	s.mu.Lock()
	b, errno := s.newBO(g, kind, size)
	s.unlock()
	if errno != 0 {
		return nil, nil, fmt.Errorf("kfdsim: bo of %d bytes on gpu %#x: %w", size, gpuID, errno)
	}
	defer func() {
		s.mu.Lock()
		s.putBO(b)
		s.unlock()
	}()
	number, errno := s.exportBO(b, nil)
	if errno != 0 {
		return nil, nil, fmt.Errorf("kfdsim: export: %w", errno)
	}
	s.mu.Lock()
	tok := s.tokens[number]
	delete(s.tokens, number)
	s.unlock()
	return os.NewFile(uintptr(tok.fd), fmt.Sprintf("dmabuf of gpu %#x", gpuID)), b.mem, nil
}
