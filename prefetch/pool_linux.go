package prefetch

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// pool is a fixed number of buffers outside the Go heap: they are page-aligned
// and cost nothing in garbage collection. They take up memory only from their
// first use on.
type pool struct {
	size int64

	mu   sync.Mutex
	more *sync.Cond
	free [][]byte // the one used last at the end: it is still in a processor's cache
}

// newPool makes a pool of at most n buffers of size bytes.
func newPool(n int, size int64) *pool {
	p := &pool{free: make([][]byte, n), size: size}
	p.more = sync.NewCond(&p.mu)
	return p
}

func (p *pool) Get() []byte {
	p.mu.Lock()
	for len(p.free) == 0 {
		p.more.Wait()
	}
	b := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.mu.Unlock()
	if b != nil {
		return b
	}
	b, err := unix.Mmap(-1, 0, int(p.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return make([]byte, p.size)
	}
	return b
}

func (p *pool) Put(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, b)
	p.more.Signal()
}

// close returns the memory. Preconditions: no buffer is in use.
func (p *pool) close() error {
	var errs []error
	for _, b := range p.free {
		if b != nil {
			// A buffer from the heap is none that Munmap knows.
			if err := unix.Munmap(b); err != nil && !errors.Is(err, unix.EINVAL) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
