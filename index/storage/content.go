package storage

import (
	"io"
	"math/rand/v2"
)

const (
	pageSize   = 4096
	sectorSize = 512 // what a disk writes wholly or not at all
)

// content is the bytes of a file in memory. A page is never changed once it is there, so that copies share pages; nil
// is a hole.
type content struct {
	size  int64
	pages []*[pageSize]byte
}

func (c *content) clone() content {
	return content{c.size, append([]*[pageSize]byte(nil), c.pages...)}
}

// grow makes c at least size bytes long.
func (c *content) grow(size int64) {
	c.size = max(c.size, size)
	if n := int((c.size + pageSize - 1) / pageSize); n > len(c.pages) {
		c.pages = append(c.pages, make([]*[pageSize]byte, n-len(c.pages))...)
	}
}

func (c *content) write(p []byte, off int64) {
	c.grow(off + int64(len(p)))
	for len(p) > 0 {
		i, at := off/pageSize, off%pageSize
		var page [pageSize]byte
		if old := c.pages[i]; old != nil {
			page = *old
		}
		n := copy(page[at:], p)
		c.pages[i] = &page
		p, off = p[n:], off+int64(n)
	}
}

func (c *content) read(p []byte, off int64) (int, error) {
	if off >= c.size {
		return 0, io.EOF
	}
	want := len(p)
	p = p[:min(int64(len(p)), c.size-off)]
	for rest := p; len(rest) > 0; {
		i, at := off/pageSize, off%pageSize
		n := min(len(rest), int(pageSize-at))
		if page := c.pages[i]; page != nil {
			copy(rest[:n], page[at:])
		} else {
			clear(rest[:n])
		}
		rest, off = rest[n:], off+int64(n)
	}
	if len(p) < want {
		return len(p), io.EOF
	}
	return len(p), nil
}

func (c *content) truncate(size int64) {
	if size >= c.size {
		c.grow(size)
		return
	}
	c.punch(size, (size+pageSize-1)/pageSize*pageSize-size) // what the file grows by later is zeros
	c.size = size
	c.pages = c.pages[:(size+pageSize-1)/pageSize]
}

// punch makes a hole of [off, off+n), as far as it lies within the file.
func (c *content) punch(off, n int64) {
	end := min(off+n, int64(len(c.pages))*pageSize)
	for off < end {
		i, at := off/pageSize, off%pageSize
		k := min(pageSize-at, end-off)
		switch {
		case k == pageSize:
			c.pages[i] = nil
		case c.pages[i] != nil:
			page := *c.pages[i]
			clear(page[at : at+k])
			c.pages[i] = &page
		}
		off += k
	}
}

// zeros is the page of what is allocated and was not written.
var zeros [pageSize]byte

// allocate takes pages for [off, off+n).
func (c *content) allocate(off, n int64) {
	c.grow(off + n)
	for i := off / pageSize; i*pageSize < off+n; i++ {
		if c.pages[i] == nil {
			c.pages[i] = &zeros
		}
	}
}

// allocated gives the bytes of [off, off+n) that are no hole.
func (c *content) allocated(off, n int64) (sum int64) {
	for end := min(off+n, c.size); off < end; {
		k := min(pageSize-off%pageSize, end-off)
		if c.pages[off/pageSize] != nil {
			sum += k
		}
		off += k
	}
	return sum
}

// change is something done to a content. Exactly one of the four: bytes written, a hole, room taken, or a new size.
type change struct {
	data  []byte
	off   int64
	hole  int64
	room  int64
	size  int64
	sized bool
}

func (x change) apply(c *content) {
	switch {
	case x.sized:
		c.truncate(x.size)
	case x.data != nil:
		c.write(x.data, x.off)
	case x.room > 0:
		c.allocate(x.off, x.room)
	default:
		c.punch(x.off, x.hole)
	}
}

// applyTorn applies some sectors of a write, some pages of a hole.
func (x change) applyTorn(c *content, r *rand.Rand) {
	switch {
	case x.sized:
		if r.IntN(2) == 0 {
			c.truncate(x.size)
		}
	case x.data != nil:
		// Half of the torn writes end somewhere, in the others any sector may be missing.
		prefix, some := r.IntN(2) == 0, r.Int64N(int64(len(x.data))+1)
		for from := int64(0); from < int64(len(x.data)); {
			to := min(int64(len(x.data)), (x.off+from)/sectorSize*sectorSize+sectorSize-x.off)
			if prefix && from < some || !prefix && r.IntN(2) == 0 {
				c.write(x.data[from:to], x.off+from)
			}
			from = to
		}
	case x.room > 0:
		if k := r.Int64N(x.room + 1); k > 0 {
			c.allocate(x.off, k)
		}
	default:
		for from := x.off; from < x.off+x.hole; {
			to := min(x.off+x.hole, from/pageSize*pageSize+pageSize)
			if r.IntN(2) == 0 {
				c.punch(from, to-from)
			}
			from = to
		}
	}
}
