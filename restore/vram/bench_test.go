package vram

import (
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/drm"
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

// Many small BOs beside one of their total size. What they hold goes together; to
// import a BO takes two requests, on the simulator round trips to its server, which
// are measured by themselves.
func BenchmarkSmallBOs(b *testing.B) {
	sizes := smallSizes(10_000)
	total := 0
	for _, n := range sizes {
		total += n
	}
	for _, bc := range []struct {
		name   string
		sizes  []int
		verify Mode
	}{
		{"one", []int{total}, VerifyNone},
		{"10000", sizes, VerifyNone},
		{"one, sampled", []int{total}, VerifySample},
		{"10000, sampled", sizes, VerifySample},
	} {
		b.Run(bc.name, func(b *testing.B) {
			r := newRig(b, kfdsim.GPU{DMARate: kfdsim.PCIe3x16, Resident: 2 << 30})
			for i, n := range bc.sizes {
				r.add(1, 0, content(byte(i), n))
			}
			src := r.plain()
			b.SetBytes(int64(total))
			b.ResetTimer()
			var took, verified time.Duration
			var jobs uint64
			for range b.N {
				rep, err := Fill(within(b), src, r.plan, Options{Verify: bc.verify})
				if err != nil {
					b.Fatal(err)
				}
				took, verified, jobs = took+rep.Duration, verified+rep.Verification, jobs+rep.Nodes[0].Jobs
			}
			b.StopTimer()
			r.intact()
			b.ReportMetric(r.imports().Seconds(), "s-import")
			b.ReportMetric(took.Seconds()/float64(b.N), "s-fill")
			b.ReportMetric(verified.Seconds()/float64(b.N), "s-verify")
			b.ReportMetric(float64(jobs)/float64(b.N), "jobs")
		})
	}
}

// imports is how long it takes to import all BOs of the first GPU.
func (r *rig) imports() time.Duration {
	r.t.Helper()
	d, err := drm.Open(r.plan.Nodes[0].File, drm.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	defer d.Close()
	began := time.Now()
	for _, bo := range r.plan.BOs {
		if _, err := d.Import(bo.Dmabuf, bo.Size); err != nil {
			r.t.Fatal(err)
		}
	}
	return time.Since(began)
}

// smallSizes are n sizes from 4 to 256 KiB, in no order.
func smallSizes(n int) []int {
	sizes := make([]int, n)
	for i := range sizes {
		sizes[i] = page << (i * 5 % 7)
	}
	return sizes
}
