package vram

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
)

// Small BOs of a GPU go together, whatever lies between them in the plan.
func TestSmallBOs(t *testing.T) {
	const n = 300
	for _, tc := range []struct {
		name string
		opts Options
		jobs uint64 // of each GPU, at most
	}{
		{"copied", Options{Verify: VerifyNone}, 8},
		{"compared", Options{}, 16},
		{"little staging", Options{Staging: 64 * kib, Verify: VerifyAll}, 2 * n},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, kfdsim.GPU{}, kfdsim.GPU{})
			for i := range n {
				switch size := page << (i % 5); i % 7 {
				case 3:
					r.add(1, i%2, make([]byte, size))
				case 5:
					r.add(1, i%2, content(byte(i), size, 0, page))
				default:
					r.add(1, i%2, content(byte(i), size))
				}
			}
			src := r.plain()
			rep, err := Fill(within(t), src, r.plan, tc.opts)
			if err != nil {
				t.Fatal(err)
			}
			r.filled()
			var ends uint64
			for _, bo := range r.plan.BOs {
				ends += min(bo.Size, 2*page)
			}
			if tc.opts.Verify == VerifySample && rep.Verified != ends {
				t.Errorf("%d bytes were read back, the ends of all have %d", rep.Verified, ends)
			}
			for _, d := range rep.Nodes {
				if d.Jobs > tc.jobs {
					t.Errorf("%d submissions for %d small buffer objects", d.Jobs, n/2)
				}
			}
			// One byte of one of them.
			const bad = 187
			r.vram[bad][len(r.vram[bad])-3]++
			_, err = Verify(within(t), src, r.plan, Options{})
			where := fmt.Sprintf("byte %#x of it", len(r.vram[bad])-3)
			if e := r.named(err); e.BO.Index != bad || !strings.Contains(e.Error(), where) {
				t.Errorf("a difference in buffer object %d: %v", bad, e)
			}
			// A file that ends in the middle of one.
			bo := r.plan.BOs[bad]
			if err := os.Truncate(filepath.Join(r.dir, bo.File), bo.Off+1); err != nil {
				t.Fatal(err)
			}
			_, err = Fill(within(t), Dir(r.dir), r.plan, Options{})
			if e := r.named(err); e.BO.Index != bad {
				t.Errorf("a file that ends in buffer object %d: %v", bad, e)
			}
		})
	}
}
