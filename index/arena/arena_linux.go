// Package arena is the memory of chunks on their way: buffers outside the Go heap, kept for reuse.
package arena

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Arena hands out buffers for chunks from outside the Go heap: the collector neither scans nor counts them, so the
// process's memory is what the cache holds and not up to twice of it. Freed buffers are kept for reuse, up to a
// bound: mapping fresh pages costs more than copying into them.
type Arena struct {
	mu     sync.Mutex
	free   [len(classes)][][]byte
	spare  int64 // bytes in free
	out    int64 // bytes handed out
	spares int64 // bound of spare
}

// classes are the sizes of buffers: steps of at most a half waste a sixth on average.
var classes = [...]int{4 << 10, 16 << 10, 64 << 10, 96 << 10, 128 << 10, 192 << 10, 256 << 10, 384 << 10, 512 << 10,
	768 << 10, 1 << 20, 3 << 19, 2 << 20, 4 << 20, 8 << 20, 17 << 20}

func classFor(n int) int {
	for i, c := range classes {
		if n <= c {
			return i
		}
	}
	return -1
}

// Size gives the capacity of the buffer that is mapped for n bytes.
func Size(n int) int { return classes[classFor(n)] }

// New gives an arena that keeps at most so many bytes of freed buffers.
func New(spares int64) *Arena { return &Arena{spares: spares} }

// Get gives a buffer with a capacity of at least n bytes, length 0, of any content.
func (a *Arena) Get(n int) ([]byte, error) {
	c := classFor(n)
	if c < 0 {
		return nil, fmt.Errorf("buffer of %d bytes", n)
	}
	if b := a.reuse(c); b != nil {
		return b, nil
	}
	b, err := unix.Mmap(-1, 0, classes[c], unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", classes[c], err)
	}
	a.mu.Lock()
	a.out += int64(classes[c])
	a.mu.Unlock()
	return b[:0], nil
}

// reuse gives a spare of class c, or else of the next larger ones up to twice the size, nil when there is none.
// Without the larger ones a reader of many chunks, whose sizes differ, keeps mapping buffers of one class while it
// unmaps those of another: a fifth of the daemon's time.
func (a *Arena) reuse(c int) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k := c; k < len(classes) && classes[k] <= 2*classes[c]; k++ {
		if n := len(a.free[k]); n > 0 {
			b := a.free[k][n-1]
			a.free[k] = a.free[k][:n-1]
			a.spare -= int64(classes[k])
			a.out += int64(classes[k])
			return b
		}
	}
	return nil
}

// Put takes a buffer back. The caller must not touch it again.
func (a *Arena) Put(b []byte) {
	if cap(b) == 0 {
		return
	}
	c := classFor(cap(b))
	a.mu.Lock()
	a.out -= int64(cap(b))
	keep := a.spare+int64(cap(b)) <= a.spares
	if keep {
		a.free[c] = append(a.free[c], b[:0])
		a.spare += int64(cap(b))
	}
	a.mu.Unlock()
	if !keep {
		unix.Munmap(b[:cap(b)])
	}
}

// InUse gives the bytes handed out and not yet given back.
func (a *Arena) InUse() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.out
}

// Close unmaps the spares.
func (a *Arena) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.free {
		for _, b := range a.free[c] {
			unix.Munmap(b[:cap(b)])
		}
		a.free[c] = nil
	}
	a.spare = 0
}
