package index

import (
	"slices"
	"testing"
)

// As many pack objects as are on their way at once, or twice as many and so on, share a checkpoint: no connection
// stands still at the end.
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
	if len(sizes) != 8 || slices.Max(sizes) > slices.Min(sizes)*3/2 {
		t.Errorf("350 MiB came as pack objects of %d bytes; want 8 of about one size", sizes)
	}
	if small := n.upload(t, b, "small").New; len(small) != 1 {
		t.Errorf("50 MiB came as %d pack objects", len(small))
	}
}
