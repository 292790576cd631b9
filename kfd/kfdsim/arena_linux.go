package kfdsim

import (
	"fmt"
	"math/rand/v2"
	"sync"

	"golang.org/x/sys/unix"
)

// arena is the memory behind one device file: a sparse memfd whose offsets are
// the offsets an application passes to mmap. A range is never handed out
// twice, so a mapping of freed memory reads zeroes instead of somebody else's
// data.
type arena struct {
	fd   int
	pool *pool // of memory that exists already; nil for none

	mu   sync.Mutex
	next uint64
}

const (
	// arenaStart is where the DRM core begins: offsets below 4 GiB were once
	// for other uses.
	arenaStart = 1 << 32
	arenaGap   = 1 << 21
)

// newArena makes an arena that reaches up to size bytes.
func newArena(name string, size int64) (*arena, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memory of %s: %w", name, err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("memory of %s: %w", name, err)
	}
	// Another machine's offsets are others, too.
	return &arena{fd: fd, next: arenaStart + rand.Uint64N(arenaStart/arenaGap)*arenaGap}, nil
}

// alloc returns a fresh range of size bytes and the simulator's mapping of it.
func (a *arena) alloc(size uint64) (off uint64, mem []byte, err error) {
	if off, mem, ok := a.pool.take(size); ok {
		return off, mem, nil
	}
	a.mu.Lock()
	off = a.next
	a.next += (size+arenaGap-1)&^(arenaGap-1) + arenaGap
	a.mu.Unlock()
	mem, err = a.mapRange(off, size)
	return off, mem, err
}

// mapRange maps a range into the simulator.
func (a *arena) mapRange(off, size uint64) ([]byte, error) {
	mem, err := unix.Mmap(a.fd, int64(off), int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes at %#x: %w", size, off, err)
	}
	return mem, nil
}

// free unmaps a range and gives its memory back.
func (a *arena) free(off uint64, mem []byte) error {
	if a.pool.give(off, mem) {
		return nil
	}
	size := int64(len(mem))
	if err := unix.Munmap(mem); err != nil {
		return fmt.Errorf("unmap: %w", err)
	}
	if err := unix.Fallocate(a.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), size); err != nil {
		return fmt.Errorf("punch hole: %w", err)
	}
	return nil
}

func (a *arena) close() {
	if a.pool != nil {
		unix.Munmap(a.pool.mem) // the process's own mapping: it is there
	}
	unix.Close(a.fd)
}
