package prefetch

import (
	"errors"

	"golang.org/x/sys/unix"
)

// pool is a fixed number of buffers outside the Go heap: they are page-aligned
// and cost nothing in garbage collection. They take up memory only from their
// first use on.
type pool struct {
	free chan []byte
	size int64
}

// newPool makes a pool of at most n buffers of size bytes.
func newPool(n int, size int64) *pool {
	p := &pool{free: make(chan []byte, n), size: size}
	for range n {
		p.free <- nil
	}
	return p
}

func (p *pool) Get() []byte {
	b := <-p.free
	if b != nil {
		return b
	}
	b, err := unix.Mmap(-1, 0, int(p.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return make([]byte, p.size)
	}
	return b
}

func (p *pool) Put(b []byte) { p.free <- b }

// close returns the memory. Preconditions: no buffer is in use.
func (p *pool) close() error {
	var errs []error
	for range cap(p.free) {
		if b := <-p.free; b != nil {
			// A buffer from the heap is none that Munmap knows.
			if err := unix.Munmap(b); err != nil && !errors.Is(err, unix.EINVAL) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
