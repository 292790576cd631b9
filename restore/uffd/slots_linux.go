package uffd

import (
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// slots is memory that the provider reads into and the guardian copies from.
// The guardian makes it, a new one for each provider, so that no provider
// writes where what an earlier one read may still be copied from.
type slots struct {
	mem   []byte
	size  int64 // of one
	count int

	// The provider's side. The slot used last is used next: what was read into
	// it is still in a processor's cache when the guardian copies from it.
	mu      sync.Mutex
	more    *sync.Cond
	free    []int
	retired bool
}

// makeSlots makes the memory and returns the descriptor to pass on.
func makeSlots(size int64, count int) (*slots, *os.File, error) {
	fd, err := unix.MemfdCreate("gpucr-fs-slots", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("make shared memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "slots")
	if err := f.Truncate(size * int64(count)); err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("make shared memory: %w", err)
	}
	s, err := mapSlots(fd, size)
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return s, f, nil
}

// mapSlots maps the memory behind a descriptor.
func mapSlots(fd int, size int64) (*slots, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("map shared memory: %w", err)
	}
	if size < pageSize || st.Size < size {
		return nil, fmt.Errorf("map shared memory: %d bytes for slots of %d", st.Size, size)
	}
	mem, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map shared memory: %w", err)
	}
	s := &slots{mem: mem, size: size, count: int(st.Size / size)}
	s.more = sync.NewCond(&s.mu)
	for i := range s.count {
		s.free = append(s.free, s.count-1-i)
	}
	return s, nil
}

func (s *slots) close() error { return unix.Munmap(s.mem) }

func (s *slots) slot(i int) []byte { return s.mem[int64(i)*s.size:][:s.size:s.size] }

// Get and Put make the provider's side prefetch.Buffers.
func (s *slots) Get() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.free) == 0 && !s.retired {
		s.more.Wait()
	}
	if s.retired {
		return make([]byte, s.size)
	}
	i := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	return s.slot(i)
}

func (s *slots) Put(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired {
		return
	}
	s.free = append(s.free, int(int64(s.page(b))*pageSize/s.size))
	s.more.Signal()
}

// retire ends the use of the memory: nobody tells any more when the guardian has
// copied from it. What is fetched from now on, for nobody, goes elsewhere.
func (s *slots) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = true
	s.more.Broadcast()
}

// page returns which page of the memory a buffer starts at.
func (s *slots) page(b []byte) uint32 {
	off := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(s.mem)))
	return uint32(off / pageSize)
}

// at returns n bytes from a page on, nil when they do not lie in the memory.
func (s *slots) at(page uint32, n int64) []byte {
	off := int64(page) * pageSize
	if n < 0 || n > s.size || off+n > int64(len(s.mem)) {
		return nil
	}
	return s.mem[off:][:n:n]
}
