package vram

import (
	"fmt"
	"math/bits"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/prefetch"
)

// Bounds of a slot. A copy of 2 MiB takes a PCIe 3 link 130 µs: enough work to
// hide a submission behind. A slot that cannot take a chunk of a store, up to
// 1 MiB, has it read and decoded more than once, so little staging memory is cut
// into few slots rather than small ones.
const (
	maxSlot  = 2 << 20
	minSlot  = pageBytes
	minSlots = 4
)

// staging is one area of memory, cut into slots of the same size. It is lent to a prefetch.Queue as its buffers.
type staging struct {
	area []byte
	slot int

	mu   sync.Mutex
	cond *sync.Cond
	free []int // the slot used last comes first: it may still be in the cache
	used int
	peak int
}

// newStaging makes slots of at most size bytes together.
func newStaging(size int64) (*staging, error) {
	slot := int64(1) << (bits.Len64(uint64(size/minSlots)) - 1)
	slot = min(max(slot, minSlot), maxSlot)
	s := &staging{slot: int(slot)}
	s.cond = sync.NewCond(&s.mu)
	n := int(size / slot)
	var err error
	if s.area, err = unix.Mmap(-1, 0, n*s.slot, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return nil, fmt.Errorf("staging memory of %d bytes: %w", n*s.slot, err)
	}
	// Neither is needed: huge pages are quicker to touch and to pin, and a
	// child of this process must not make pages copies.
	_ = unix.Madvise(s.area, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(s.area, unix.MADV_DONTFORK)
	for i := n - 1; i >= 0; i-- {
		s.free = append(s.free, i)
	}
	return s, nil
}

func (s *staging) slots() int { return len(s.area) / s.slot }

// Get waits for a free slot.
func (s *staging) Get() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.free) == 0 {
		s.cond.Wait()
	}
	i := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	s.used++
	s.peak = max(s.peak, s.used)
	return s.part(i)
}

// Put gives a slot back.
func (s *staging) Put(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, s.number(b))
	s.used--
	s.cond.Signal()
}

// offset returns where in the area a part of a slot begins.
func (s *staging) offset(b []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(s.area))))
}

// part is the slot of a number.
func (s *staging) part(k int) []byte { return s.area[k*s.slot : (k+1)*s.slot] }

// number returns which slot b is a part of.
func (s *staging) number(b []byte) int { return int(s.offset(b)) / s.slot }

func (s *staging) peakBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.peak) * int64(s.slot)
}

// close gives the memory back. Preconditions: no GPU knows it any more.
func (s *staging) close() error { return unix.Munmap(s.area) }

var _ prefetch.Buffers = (*staging)(nil)
