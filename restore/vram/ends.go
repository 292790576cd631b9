package vram

import "hash/maphash"

// Of a small BO its first and last bytes are compared: they tell whether its copy went to its place, and all of it.
const endBytes = pageBytes

// maxEnds is how many ends are compared at once: those of as many BOs as are filled at once.
const maxEnds = 2 * maxGroup

// end is the first or the last part of a small BO, or all of one that is no larger than both. A fill notes the hash
// of what it has read, so that nothing is read again: to read one page, a store reads and decodes the chunk that
// holds it, which is most of what a second fill would take.
type end struct {
	off, n int64
	sum    uint64
	read   bool // sum counts
}

// listEnds lists the ends, of n bytes each, of BOs, in their order.
func (c *contents) listEnds(n int64) {
	for i, start := range c.starts {
		stop := c.size
		if i+1 < len(c.starts) {
			stop = c.starts[i+1]
		}
		if stop-start <= 2*n {
			c.ends = append(c.ends, end{off: start, n: stop - start})
			continue
		}
		c.ends = append(c.ends, end{off: start, n: n}, end{off: stop - n, n: n})
	}
}

// note keeps the hashes of the ends that data, read from off on, has whole. Reads of different ranges may note at
// once.
func (c *contents) note(off int64, data []byte) {
	for i := range c.ends {
		e := &c.ends[i]
		if e.off >= off+int64(len(data)) {
			break
		}
		if e.off >= off && e.off+e.n <= off+int64(len(data)) {
			e.sum, e.read = maphash.Bytes(c.w.seed, data[e.off-off:][:e.n]), true
		}
	}
}

// unread says which places the fill has not read whole.
func (s sample) unread() []bool {
	out := make([]bool, len(s))
	for i, p := range s {
		out[i] = p.sum == nil || !p.sum.read
	}
	return out
}

// differing says which of the other places differ from what the fill has read; has is what is in all places.
func (s sample) differing(has []byte, unread []bool) []bool {
	out := make([]bool, len(s))
	for i, p := range s {
		out[i] = !unread[i] && maphash.Bytes(p.w.seed, has[:p.n]) != p.sum.sum
		has = has[p.n:]
	}
	return out
}
