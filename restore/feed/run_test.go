package feed

import "testing"

// With more processors more is fetched at once, in as much memory.
func TestMoreProcessorsFetchInSmallerRuns(t *testing.T) {
	for _, x := range []struct {
		memory     int64
		processors int
		run        int64
	}{
		{32 << 20, 2, 2 << 20}, {16 << 20, 2, 2 << 20}, {16 << 20, 8, 2 << 20}, {16 << 20, 12, 1 << 20},
		{16 << 20, 16, 1 << 20}, {16 << 20, 64, 1 << 20}, {32 << 20, 64, 2 << 20}, {4 << 20, 2, 512 << 10},
		{4 << 20, 64, 256 << 10}, {1 << 20, 64, 256 << 10},
	} {
		if got := runBytes(x.memory, x.processors); got != x.run {
			t.Errorf("%d MiB, %d processors: runs of %d KiB, want %d", x.memory>>20, x.processors, got>>10, x.run>>10)
		}
	}
}
