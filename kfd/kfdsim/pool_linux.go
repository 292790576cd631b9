package kfdsim

import (
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// pool is a part of an arena whose memory exists from the start and is used
// again, as VRAM is. It goes round (next fit), so that what is freed is not
// what is handed out next. A nil pool is empty.
type pool struct {
	off uint64
	mem []byte

	mu     sync.Mutex
	free   []extent // by offset, no two of them adjacent
	cursor uint64
}

type extent struct{ off, n uint64 }

// addPool gives the arena a pool of n bytes, all of them touched.
func (a *arena) addPool(n uint64) error {
	off, mem, err := a.alloc(n)
	if err != nil {
		return err
	}
	if err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE); err != nil {
		return fmt.Errorf("%d bytes of resident memory: %w", n, err)
	}
	a.pool = &pool{off: off, mem: mem, free: []extent{{off, n}}, cursor: off}
	return nil
}

// room tells whether n bytes can be cut from the pool; a nil pool keeps nobody waiting.
func (p *pool) room(n uint64) bool {
	if p == nil || n > uint64(len(p.mem)) {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.free, func(e extent) bool { return e.n >= n })
}

// take cuts n bytes from the pool.
func (p *pool) take(n uint64) (uint64, []byte, bool) {
	if p == nil {
		return 0, nil, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	first := slices.IndexFunc(p.free, func(e extent) bool { return e.off >= p.cursor })
	if first < 0 {
		first = 0
	}
	for k := range p.free {
		i := (first + k) % len(p.free)
		e := &p.free[i]
		if e.n < n {
			continue
		}
		off := e.off
		e.off, e.n = e.off+n, e.n-n
		if e.n == 0 {
			p.free = slices.Delete(p.free, i, i+1)
		}
		p.cursor = off + n
		at := off - p.off
		return off, p.mem[at : at+n : at+n], true
	}
	return 0, nil, false
}

// give wipes memory and takes it back, unless it is not the pool's.
func (p *pool) give(off uint64, mem []byte) bool {
	if p == nil || off < p.off || off >= p.off+uint64(len(p.mem)) {
		return false
	}
	clear(mem)
	p.mu.Lock()
	defer p.mu.Unlock()
	i, _ := slices.BinarySearchFunc(p.free, off, func(e extent, off uint64) int {
		if e.off < off {
			return -1
		}
		return 1
	})
	p.free = slices.Insert(p.free, i, extent{off, uint64(len(mem))})
	for _, j := range []int{i, i - 1} {
		if j >= 0 && j+1 < len(p.free) && p.free[j].off+p.free[j].n == p.free[j+1].off {
			p.free[j].n += p.free[j+1].n
			p.free = slices.Delete(p.free, j+1, j+2)
		}
	}
	return true
}
