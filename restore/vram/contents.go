package vram

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/gpucr/gpucr-fs/kfd/drm"
	"github.com/gpucr/gpucr-fs/prefetch"
)

// Small BOs that follow each other in a file are read, copied and compared
// together: a submission and its wait take longer than what one of them holds.
const (
	smallBO  = places * placeBytes
	maxGroup = 120 // BOs of one submission
)

// contents is the part of an image file that a BO is in, or several small ones of
// one GPU, as a file of a prefetch.Queue.
type contents struct {
	w      *work
	bos    []int   // at least one
	starts []int64 // where each begins
	file   *imageFile
	off    int64
	size   int64
	// parts cover the contents in order, zeros and data alternating.
	parts []stretch
	// ends are what is compared of small BOs, in order; nil when it is not.
	ends []end
}

// join adds a BO to contents, if it continues them and both are small.
func (c *contents) join(i int) bool {
	t, slot := c.w.targets[i], int64(c.w.staging.slot)
	size := int64(t.bo.Size)
	if t.dev != c.dev() || t.bo.Off != c.off+c.size || size > smallBO || c.size+size > slot || len(c.bos) == maxGroup ||
		len(c.bos) == 1 && c.size > smallBO {
		return false
	}
	c.bos, c.starts = append(c.bos, i), append(c.starts, c.size)
	c.size += size
	return true
}

func (c *contents) dev() *device { return c.w.targets[c.bos[0]].dev }

// at returns which of the BOs has a byte, as an index of bos.
func (c *contents) at(off int64) int {
	i, found := slices.BinarySearch(c.starts, off)
	if !found {
		i--
	}
	return i
}

// piece is a copy or a fill, and the BO that it is for.
type piece struct {
	bo int
	op drm.Op
}

// pieces calls yield with the BOs' buffers of n bytes from off on, in
// order: at is the place in the buffer, from how far it is from off. The error is
// that of a BO.
func (c *contents) pieces(off, n int64, yield func(bo int, buf *drm.Buffer, at, from, n int64)) error {
	for from := int64(0); from < n; {
		i := c.at(off + from)
		end := c.size
		if i+1 < len(c.starts) {
			end = c.starts[i+1]
		}
		buf, err := c.w.targets[c.bos[i]].get()
		if err != nil {
			return c.w.wrong(c.bos[i], err)
		}
		k := min(end-off-from, n-from)
		yield(c.bos[i], buf, off+from-c.starts[i], from, k)
		from += k
	}
	return nil
}

// look finds the runs of zeros that are worth a fill. They begin and end at
// units of the queue, or at the end of the contents. Little of a plain file is not
// looked at: some file systems go through all that follows to find the end of data, 100 ms
// for 1 GiB on tmpfs.
func (c *contents) look() {
	if c.file.cuts == nil && c.size < minLook {
		c.parts = []stretch{{n: c.size}}
		return
	}
	for off := int64(0); off < c.size; {
		start, stop, err := c.file.Data(c.off+off, c.off+c.size)
		if err != nil || start < c.off+off || stop > c.off+c.size || start < c.off+c.size && stop <= start {
			// Reading will tell.
			start, stop = c.off+off, c.off+c.size
		}
		start, stop = start-c.off, max(start, stop)-c.off
		c.zeros(off, start)
		off = stop
	}
	if end := c.covered(); end < c.size {
		c.parts = append(c.parts, stretch{off: end, n: c.size - end})
	}
}

func (c *contents) covered() int64 {
	if len(c.parts) == 0 {
		return 0
	}
	last := c.parts[len(c.parts)-1]
	return last.off + last.n
}

// zeros notes that [start, end) is zero, and that what lies before is data.
func (c *contents) zeros(start, end int64) {
	start = (start + prefetch.UnitBytes - 1) / prefetch.UnitBytes * prefetch.UnitBytes
	if end < c.size {
		end = end / prefetch.UnitBytes * prefetch.UnitBytes
	}
	if end-start < minZero && end-start != c.size {
		return
	}
	if before := c.covered(); before < start {
		c.parts = append(c.parts, stretch{off: before, n: start - before})
	}
	c.parts = append(c.parts, stretch{off: start, n: end - start, zero: true})
}

func (c *contents) Size() int64 { return c.size }

// ReadAt reads a part of the contents. The first failure that stays ends the work; who reads tries again what may pass.
func (c *contents) ReadAt(p []byte, off int64) (int, error) {
	if err := c.w.failed(); err != nil {
		return 0, err
	}
	n, err := c.file.ReadAt(p, c.off+off)
	if n == len(p) {
		return n, nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if prefetch.MayPass(err) {
		return n, err
	}
	bo := c.bos[c.at(off+int64(n))]
	if n == 0 && len(c.bos) > 1 {
		bo, n, err = c.unreadable(p, off, err)
	}
	c.w.fail(bo, fmt.Errorf("image %s, byte %d: %w", c.w.plan.BOs[bo].File, c.off+off+int64(n), err))
	return n, err
}

// unreadable finds the BO of which len(p) bytes cannot be read from off on, by reading what they have of each; all of
// them may now be readable. p is overwritten. n is how far the bytes before it go.
func (c *contents) unreadable(p []byte, off int64, why error) (bo, n int, err error) {
	for n < len(p) {
		k := c.at(off + int64(n))
		end := c.size
		if k+1 < len(c.starts) {
			end = c.starts[k+1]
		}
		part := p[n:min(int(end-off), len(p))]
		if _, err := c.file.ReadAt(part, c.off+off+int64(n)); err != nil {
			return c.bos[k], n, err
		}
		n += len(part)
	}
	return c.bos[c.at(off)], 0, why
}

// Data gives the parts that are not filled with zeros.
func (c *contents) Data(off, end int64) (start, stop int64, err error) {
	for _, s := range c.from(off) {
		if s.off >= end {
			break
		}
		if !s.zero {
			return max(off, s.off), min(end, s.off+s.n), nil
		}
	}
	return end, end, nil
}

// Spans gives what is stored together.
func (c *contents) Spans(yield func(start, end int64) bool) error {
	if c.file.cuts == nil {
		return errors.ErrUnsupported
	}
	i, _ := slices.BinarySearch(c.file.cuts, c.off)
	start := int64(0)
	for ; i < len(c.file.cuts) && start < c.size; i++ {
		end := min(c.file.cuts[i]-c.off, c.size)
		if end > start && !yield(start, end) {
			break
		}
		start = end
	}
	return nil
}

// Locate has the image file look up where a part of the contents is stored.
func (c *contents) Locate(off, n int64, stop <-chan struct{}) {
	if l, ok := c.file.File.(prefetch.Locator); ok {
		l.Locate(c.off+off, n, stop)
	}
}

// from returns the parts that end after off.
func (c *contents) from(off int64) []stretch {
	i, _ := slices.BinarySearchFunc(c.parts, off, func(s stretch, off int64) int {
		if s.off+s.n <= off {
			return -1
		}
		return 1
	})
	return c.parts[i:]
}
