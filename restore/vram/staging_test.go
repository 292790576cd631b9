package vram

import "testing"

// Little staging memory still has slots that take a chunk.
func TestSlotSizes(t *testing.T) {
	for _, tc := range []struct {
		size int64
		slot int
		n    int
	}{
		{DefaultStaging, 2 * mib, 32},
		{DefaultStaging / 8, 2 * mib, 4}, // of eight processes that are filled at once
		{5 * mib, mib, 5},
		{mib, 256 * kib, 4},
		{64 * kib, 16 * kib, 4},
		{MinStaging, page, 2},
	} {
		s, err := newStaging(tc.size)
		if err != nil {
			t.Fatal(err)
		}
		if s.slot != tc.slot || s.slots() != tc.n {
			t.Errorf("%d bytes: %d slots of %d bytes, expected %d of %d", tc.size, s.slots(), s.slot, tc.n, tc.slot)
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
}
