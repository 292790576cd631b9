package upload

import (
	"slices"
	"testing"

	"github.com/gpucr/gpucr-fs/index/remote/object"
)

// packed gives the sizes of the pack objects of content that comes in chunks of 64 KiB, in MiB: slot tells the slot of
// each. As many as packers go at once.
func packed(packers int, content int64, slot func(at int64) int64) (sizes []int64) {
	const each = 64 << 10
	b := balance{packers: packers, left: content}
	var gathered int64
	for at := int64(0); at < content; at += each {
		s := slot(at)
		if s > 0 && (b.full(gathered) || gathered+s > object.TargetSize) {
			sizes, gathered = append(sizes, gathered>>20), 0
			b.begun++
		}
		gathered += s
		b.saw(each, s)
	}
	return append(sizes, gathered>>20)
}

// What comes first does not tell how small the rest becomes: there are hardly more pack objects than of 64 MiB each.
func TestSmallBeginning(t *testing.T) {
	for _, small := range []int64{64 << 10, 16 << 20, 1 << 30} {
		sizes := packed(4, small+2<<30, func(at int64) int64 {
			if at < small {
				return 4 << 10
			}
			return 64 << 10
		})
		if len(sizes) > 38 {
			t.Errorf("after %d KiB that become small, 2 GiB are pack objects of %v MiB", small>>10, sizes)
		}
	}
}

// What fits into one pack object is one, and what is little more becomes two of about one size.
func TestFewPacks(t *testing.T) {
	for packers, of := range map[int]map[int64][]int64{
		4: {20: {20}, 42: {42}, 63: {63}, 65: {33, 31}, 150: {39, 39, 39, 34}, 250: {64, 64, 64, 58},
			300: {24, 24, 24, 24, 52, 52, 52, 46}},
		8: {65: {33, 31}, 250: {36, 36, 36, 36, 36, 36, 28},
			300: {24, 24, 24, 24, 35, 35, 35, 35, 35, 28}},
	} {
		for mb, want := range of {
			sizes := packed(packers, mb<<20, func(int64) int64 { return 64 << 10 })
			if !slices.EqualFunc(sizes, want, func(a, b int64) bool { return a-b >= -1 && a-b <= 1 }) {
				t.Errorf("%d at once: %d MiB are pack objects of %v MiB, want %v", packers, mb, sizes, want)
			}
		}
	}
}

// Whatever is packed, no pack object but the last is smaller than half of one, or than three eighths among the first.
func TestLeastPack(t *testing.T) {
	for name, slot := range map[string]func(at int64) int64{
		"as it is":            func(int64) int64 { return 64 << 10 },
		"small":               func(int64) int64 { return 4 << 10 },
		"known all":           func(int64) int64 { return 0 },
		"known every second":  func(at int64) int64 { return at & (64 << 10) },
		"known at the end":    func(at int64) int64 { return 64 << 10 * max(0, min(1, 300<<20-at)) },
		"small now and then":  func(at int64) int64 { return 4<<10 + 60<<10*(at>>28&1) },
		"known now and then":  func(at int64) int64 { return 64 << 10 * (at >> 28 & 1) },
		"larger than content": func(int64) int64 { return 256 << 10 },
	} {
		for _, content := range []int64{64 << 10, 33 << 20, 65 << 20, 257 << 20, 900 << 20, 3 << 30} {
			for _, packers := range []int{4, 8} {
				sizes := packed(packers, content, slot)
				front := sizes[:len(sizes)-1]
				n := min(4, len(front))
				if n > 0 && slices.Min(front[:n]) < 24 || len(front) > n && slices.Min(front[n:]) < 32 {
					t.Errorf("%s, %d at once: %d MiB are pack objects of %v MiB", name, packers, content>>20, sizes)
				}
			}
		}
	}
}
