package drm

import "testing"

// Thousands of small buffers take few page tables, of 2 MiB of addresses each, and none is mapped right behind another.
func TestSmallBuffersLieTogether(t *testing.T) {
	d := &Device{nextVA: vaStart, endVA: 1 << 47}
	tables, total, end := map[uint64]bool{}, uint64(0), uint64(0)
	for i := range 10_000 {
		size := uint64(4096) << (i * 5 % 7)
		va, err := d.reserve(size)
		if err != nil {
			t.Fatal(err)
		}
		if va%4096 != 0 || va <= end {
			t.Fatalf("%d bytes at %#x, the last one ends at %#x", size, va, end)
		}
		end, total = va+size, total+size
		for at := va; at < end; at += 4096 {
			tables[at/vaAlign] = true
		}
	}
	if limit := int(total/vaAlign) * 5 / 4; len(tables) > limit {
		t.Errorf("%d page tables for %d bytes, more than %d", len(tables), total, limit)
	}
	if va, err := d.reserve(3 << 20); err != nil || va%vaAlign != 0 || va <= end {
		t.Errorf("a large buffer lies at %#x: %v", va, err)
	}
	full := &Device{nextVA: vaStart, endVA: vaStart + vaAlign}
	if _, err := full.reserve(4096); err == nil {
		t.Error("an address behind the end of the address space was given")
	}
}
