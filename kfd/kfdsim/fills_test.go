package kfdsim

import (
	"math/rand/v2"
	"testing"
)

// Gaps are held against one bit a byte.
func TestGaps(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const size = 200
	for range 200 {
		g := gaps{{0, size}}
		var have [size]bool
		for range 30 {
			off := random.Uint64N(size)
			n := 1 + random.Uint64N(size-off)
			missing := false
			for _, b := range have[off : off+n] {
				missing = missing || !b
			}
			if hole, ok := g.over(off, n); ok != missing || ok && (hole.off >= off+n || hole.end <= off) {
				t.Fatalf("%v over %d+%d: %v, %v", g, off, n, hole, ok)
			}
			if random.IntN(2) == 0 {
				continue
			}
			g = g.without(off, n)
			for i := range have[off : off+n] {
				have[off+uint64(i)] = true
			}
			left := uint64(0)
			for _, b := range have {
				if !b {
					left++
				}
			}
			if g.bytes() != left {
				t.Fatalf("%d bytes are missing of %v", left, g)
			}
		}
	}
}
