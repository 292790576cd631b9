package index

import (
	"slices"
	"testing"
)

// Four small pack objects, and as many as are on their way at once, or twice as many and so on, share a checkpoint: no
// connection waits long at the beginning, or stands still at the end.
func TestPacksShareACheckpoint(t *testing.T) {
	b := newShelf()
	n := newNode(t, b, "")
	n.fill(t, "large", 1, 350<<20)
	n.fill(t, "small", 2, 50<<20)
	large := n.upload(t, b, "large").New
	var sizes []int64
	for _, p := range large {
		sizes = append(sizes, p.Size)
	}
	same := func(sizes []int64) bool { return slices.Max(sizes) <= slices.Min(sizes)*3/2 }
	if len(sizes) != 8 || !same(sizes[:4]) || !same(sizes[4:]) || sizes[0] > 26<<20 {
		t.Errorf("350 MiB came as pack objects of %d bytes; want 4 of 24 MiB and 4 of about one size", sizes)
	}
	if small := n.upload(t, b, "small").New; len(small) != 1 {
		t.Errorf("50 MiB came as %d pack objects", len(small))
	}
}
