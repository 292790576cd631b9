package catalog

import (
	"flag"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var (
	simulations = flag.Uint64("sim.n", 3000, "interleavings to simulate")
	firstSeed   = flag.Uint64("sim.seed", 1, "seed of the first interleaving")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// simulate runs one interleaving, and says what went wrong.
func simulate(seed uint64, omit omitted, trace *[]string) (steps int, wrong string) {
	w := newWorld(seed, omit, trace)
	w.populate()
	w.play()
	w.settle()
	return w.step, w.wrong
}

// search runs n interleavings from a seed on, until one goes wrong. It gives that one's seed.
func search(first, n uint64, omit omitted) (seed, steps uint64, wrong string) {
	defer debug.SetGCPercent(debug.SetGCPercent(1000))
	var next, taken atomic.Uint64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < n; i = next.Add(1) - 1 {
				s, text := simulate(first+i, omit, nil)
				taken.Add(uint64(s))
				if text != "" {
					next.Store(n)
					mu.Lock()
					if wrong == "" || first+i < seed {
						seed, wrong = first+i, text
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return seed, taken.Load(), wrong
}

// TestSimulation: no byte of a checkpoint that stands is lost or wrong, whoever crashes, pauses or gets no answer
// where, and nothing stays behind for ever.
func TestSimulation(t *testing.T) {
	began := time.Now()
	seed, steps, wrong := search(*firstSeed, *simulations, omitted{})
	if wrong != "" {
		var trace []string
		simulate(seed, omitted{}, &trace)
		t.Fatalf("seed %d: %s\nrun it again with -sim.seed %d -sim.n 1\n%s", seed, wrong, seed,
			strings.Join(trace, "\n"))
	}
	took := time.Since(began)
	t.Logf("%d interleavings from seed %d, %d requests, %.0f s: %.0f interleavings a second", *simulations, *firstSeed,
		steps, took.Seconds(), float64(*simulations)/took.Seconds())
}

// TestSimulationNotices: without any one of its steps the scheme loses something, and the simulation sees it.
func TestSimulationNotices(t *testing.T) {
	const within = 10000
	for _, c := range []struct {
		name string
		omit omitted
	}{
		{"tombstones unread", omitted{tombstones: true}},
		{"packs looked for before tombstones", omitted{order: true}},
		{"pending roots not counted", omitted{pending: true}},
		{"roots listed before tombstones are put", omitted{second: true}},
		{"sealed without a condition", omitted{condition: true}},
		{"tombstones shared by runs", omitted{ownTombs: true}},
		{"attempts of a write with one revision", omitted{revision: true}},
		{"other packs unchecked", omitted{check: true}},
		{"other packs checked before the root lists them", omitted{publish: true}},
		{"packs left by another exchange unchecked", omitted{rest: true}},
		{"other packs without a condition", omitted{match: true}},
		{"readers of moved packs forgotten", omitted{grace: true}},
		{"a removal that meets other packs", omitted{removal: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			seed, _, wrong := search(1, within, c.omit)
			if wrong == "" {
				t.Fatalf("%d interleavings passed", within)
			}
			t.Logf("interleaving %d: %s", seed, wrong)
		})
	}
}
