package server

import (
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
)

// What a fill takes over links, of PCIe 3 x16 and slower ones: how much of the time the
// simulator's engines were busy, and how the time compares with what the bytes
// take on the link. Files are page-cached, the store's packs too.
func BenchmarkFill(b *testing.B) {
	for _, bc := range []struct {
		name  string
		gpus  int
		store bool
		opts  Options
		rate  float64
	}{
		{"directory, 1 gpu", 1, false, Options{}, kfdsim.PCIe3x16},
		{"directory, 2 gpus", 2, false, Options{}, kfdsim.PCIe3x16},
		{"store, 1 gpu", 1, true, Options{}, kfdsim.PCIe3x16},
		{"store, 2 gpus", 2, true, Options{}, kfdsim.PCIe3x16},
		{"directory, 1 gpu, 8 MiB staging", 1, false, Options{Staging: 8 * mib}, kfdsim.PCIe3x16},
		{"store, 1 gpu, 8 MiB staging", 1, true, Options{Staging: 8 * mib}, kfdsim.PCIe3x16},
		// A link that this machine's cores can keep up with.
		{"directory, 1 gpu, 2 GB/s", 1, false, Options{}, 2e9},
		{"store, 2 gpus, 1 GB/s each", 2, true, Options{}, 1e9},
	} {
		b.Run(bc.name, func(b *testing.B) {
			const each = 1 << 30
			gpus := make([]kfdsim.GPU, bc.gpus)
			for i := range gpus {
				gpus[i] = kfdsim.GPU{DMARate: bc.rate, Resident: each/uint64(bc.gpus) + 64*mib}
			}
			r := newRig(b, gpus...)
			for i := range 8 {
				r.add(1, i%bc.gpus, content(byte(i+1), each/8))
			}
			src := r.plain()
			if bc.store {
				src, _ = r.store()
			}
			bc.opts.Verify = VerifyNone
			b.SetBytes(each)
			var busy, span, wire, took time.Duration
			var share float64
			b.ResetTimer()
			for range b.N {
				r.sim.DMAStats(true)
				rep, err := Fill(within(b), src, r.plan, bc.opts)
				if err != nil {
					b.Fatal(err)
				}
				for _, st := range r.sim.DMAStats(false) {
					busy, span, wire = busy+st.Busy, span+rep.Duration, wire+st.Wire
				}
				took += rep.Duration
				share += rep.BusyShare()
			}
			b.StopTimer()
			r.intact()
			b.ReportMetric(100*busy.Seconds()/span.Seconds(), "%busy")
			b.ReportMetric(100*share/float64(b.N), "%reported")
			b.ReportMetric(100*wire.Seconds()/span.Seconds(), "%wire")
		})
	}
}
