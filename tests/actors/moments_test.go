package actors

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// There is one moment in each part of the time, and the seed gives the same ones again.
func TestMoments(t *testing.T) {
	const n, length = 50, time.Second
	draw := func() []time.Duration { return Moments(rand.New(rand.NewPCG(7, 0)), n, length) }
	all := draw()
	if !slices.Equal(all, draw()) {
		t.Error("the same seed gives other moments")
	}
	if slices.IsSorted(all) {
		t.Error("the moments come in order")
	}
	slices.Sort(all)
	for i, at := range all {
		if from := length / n * time.Duration(i); at < from || at >= from+length/n {
			t.Errorf("moment %d of %d is %v", i, n, at)
		}
	}
}
