package plugin

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/tests/e2e/kfd/rig"
	"github.com/gpucr/gpucr-fs/tests/measure"
)

var (
	vramSize = flag.Int64("vram.size", 64<<20, "bytes of VRAM of the larger process")
	vramRuns = flag.Int("vram.n", 1, "measured restores of each kind")
)

// resumes is a process with some VRAM that is restored again and again, on a machine of its own.
type resumes struct {
	*bench
	app           *rig.Application
	size          int64
	ran, gpuReady map[string][]float64 // by mode, in milliseconds
}

func newResumes(t *testing.T, size int64) *resumes {
	b := newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{Resident: 3 << 30}}})
	app := b.StartApp(1, "--interval", "1", "--bos", "12", "--max-bo", "65536", "--big-bo", fmt.Sprint(size))
	b.dump(app)
	return &resumes{b, app, size, map[string][]float64{}, map[string][]float64{}}
}

// restoreIn restores once, and notes the times. held is whether VRAM is held back until the process runs.
func (r *resumes) restoreIn(mode string, held, last bool) {
	r.T.Helper()
	r.env = []string{"GPUCR_VRAM=" + mode}
	if held && mode == "lazy" {
		r.rate(heldBack * float64(r.size) / (64 << 20))
	}
	began := time.Now()
	r.restore()
	resume := time.Since(began)
	if n, _ := r.missing(0); held && (mode == "lazy") != (n > uint64(r.size)/2) {
		r.T.Errorf("%s: the process runs with %d of %d bytes missing", mode, n, r.size)
	}
	if held {
		r.rate(0)
	}
	ready := r.ready().Sub(began)
	r.noHelpers()
	r.ran[mode] = append(r.ran[mode], ms(resume))
	r.gpuReady[mode] = append(r.gpuReady[mode], ms(ready))
	if last {
		r.app.WaitRounds(1)
	}
	r.app.Kill()
	r.app.WaitGone()
	r.WaitVRAMFree()
	r.noGPUErrors()
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// How soon a process runs does not depend on its VRAM, and its queues run no later than if it waited for all. How long
// both take is measured where that is asked for (-vram.n), the kinds in turns, for machines have better and worse
// minutes; a machine that is busy with other things tells nothing.
func TestResumeWithoutVRAM(t *testing.T) {
	measured := *vramRuns > 1
	small, large := newResumes(t, 16<<20), newResumes(t, *vramSize)
	runs := *vramRuns
	if measured {
		runs++                         // the first one reads the program from disk
		large.rate(float64(*vramSize)) // it takes a second
		small.rate(float64(*vramSize))
	}
	for i := range runs {
		small.restoreIn("lazy", !measured, i == runs-1)
		large.restoreIn("lazy", !measured, i == runs-1)
		large.restoreIn("gate", !measured, i == runs-1)
		if measured && i == 0 {
			for _, r := range []*resumes{small, large} {
				clear(r.ran)
				clear(r.gpuReady)
			}
		}
	}
	median := measure.Median
	t.Logf("medians of %d in ms: 16 MiB run after %.0f, %d MiB after %.0f, gated %.0f; "+
		"gpu ready after %.0f, %.0f, gated %.0f", *vramRuns, median(small.ran["lazy"]), *vramSize>>20,
		median(large.ran["lazy"]), median(large.ran["gate"]),
		median(small.gpuReady["lazy"]), median(large.gpuReady["lazy"]), median(large.gpuReady["gate"]))
	t.Logf("resume: 16 MiB %.0f, %d MiB %.0f, gated %.0f; gpu ready %.0f, gated %.0f", small.ran["lazy"],
		*vramSize>>20, large.ran["lazy"], large.ran["gate"], large.gpuReady["lazy"], large.gpuReady["gate"])
	if !measured {
		return
	}
	if late := median(large.ran["lazy"]) - median(small.ran["lazy"]); late > 30 {
		t.Errorf("%d MiB of VRAM cost %.0f ms until resume; bound 30 ms", *vramSize>>20, late)
	}
	if a, b := median(large.gpuReady["lazy"]), median(large.gpuReady["gate"]); a > 1.1*b {
		t.Errorf("queues run after %.0f ms, gated after %.0f; bound 10 %% more", a, b)
	}
}
