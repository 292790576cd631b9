package vram

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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

// Many small BOs and one of their total size, filled in turns: the median ratio of the
// times counts, with and without closing what was imported. What small ones hold goes
// together; to import a BO takes two requests, which a driver answers in the caller, and the
// simulator after a round trip to its server. x-driver is the ratio of fills without these
// trips, which are measured beside each. x-cpu, and x-cpu-driver without the trips, are of processor time, with closing
// and reading back, which other programs beside the benchmark change little.
func BenchmarkSmallBOs(b *testing.B) {
	sizes := smallSizes(10_000)
	total := 0
	for _, n := range sizes {
		total += n
	}
	gpu := kfdsim.GPU{DMARate: kfdsim.PCIe3x16, Resident: 2 << 30}
	many, one := newRig(b, gpu), newRig(b, gpu)
	for i, n := range sizes {
		many.add(1, 0, content(byte(i), n))
	}
	one.add(1, 0, content(1, total))
	from := map[*rig]Source{many: many.plain(), one: one.plain()}
	for _, verify := range []Mode{VerifyNone, VerifySample} {
		b.Run("verify "+verify.String(), func(b *testing.B) {
			b.SetBytes(2 * int64(total))
			var ratios, whole, fills, driver, cpu, cpuDriver []float64
			var jobs uint64
			for range b.N {
				took, all, used := map[*rig]float64{}, map[*rig]float64{}, map[*rig]float64{}
				for _, r := range []*rig{one, many} {
					begun, before := time.Now(), cpuTime(b)
					rep, err := Fill(within(b), from[r], r.plan, Options{Verify: verify})
					if err != nil {
						b.Fatal(err)
					}
					used[r] = cpuTime(b) - before
					took[r], all[r], jobs = rep.Duration.Seconds(), time.Since(begun).Seconds(), rep.Nodes[0].Jobs
				}
				before := cpuTime(b)
				trips := many.trips(2 * len(many.plan.BOs)).Seconds()
				tripsUsed := cpuTime(b) - before
				cpu = append(cpu, used[many]/used[one])
				cpuDriver = append(cpuDriver, (used[many]-tripsUsed)/used[one])
				driver = append(driver, max(took[many]-trips, 0)/took[one])
				ratios, whole = append(ratios, took[many]/took[one]), append(whole, all[many]/all[one])
				fills = append(fills, took[many])
			}
			b.StopTimer()
			many.intact()
			b.ReportMetric(median(ratios), "x-fill")
			b.ReportMetric(median(whole), "x-whole")
			b.ReportMetric(median(driver), "x-driver")
			b.ReportMetric(median(cpu), "x-cpu")
			b.ReportMetric(median(cpuDriver), "x-cpu-driver")
			b.ReportMetric(median(fills), "s-fill")
			b.ReportMetric(many.imports().Seconds(), "s-import")
			b.ReportMetric(float64(jobs), "jobs")
		})
	}
}

// cpuTime is how many seconds of processor time this process, with the simulator in it, has used.
func cpuTime(t testing.TB) float64 {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
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
