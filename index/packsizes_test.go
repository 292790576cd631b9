package index

import (
	"slices"
	"testing"
)

// The last pack objects of a checkpoint share what is left, so that no connection stands still at the end.
func TestLastPacksShareWhatIsLeft(t *testing.T) {
	b := newShelf()
	n := newNode(t, b, "")
	n.fill(t, "large", 1, 350<<20)
	n.fill(t, "small", 2, 50<<20)
	large := n.upload(t, b, "large").New
	var sizes []int64
	for _, p := range large {
		sizes = append(sizes, p.Size)
	}
	last := sizes[len(sizes)-4:]
	if len(sizes) < 5 || sizes[0] < 60<<20 || slices.Max(last) > slices.Min(last)*3/2 {
		t.Errorf("350 MiB came as pack objects of %d bytes; the last four should be about as large", sizes)
	}
	if small := n.upload(t, b, "small").New; len(small) != 1 {
		t.Errorf("50 MiB came as %d pack objects", len(small))
	}
}
