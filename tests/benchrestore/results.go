package main

import (
	"fmt"
	"io"

	"github.com/gpucr/gpucr-fs/tests/measure"
)

// figures are seconds from the command on, and megabytes.
type figures struct {
	Resume   float64 `json:"resume"`
	Response float64 `json:"response"`
	Resident float64 `json:"resident"`
	PeakMB   float64 `json:"peak_mb,omitempty"`
}

func (f figures) peak() string {
	if f.PeakMB == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f MB", f.PeakMB)
}

// row is a line of the table: one way to restore one size from one state of the page cache.
type row struct {
	MB      int       `json:"mb"`
	State   string    `json:"page_cache"`
	Way     string    `json:"way"`
	Samples []figures `json:"samples"`
}

// of gives the median of one figure.
func (r *row) of(get func(figures) float64) float64 { return measure.MedianOf(r.Samples, get) }

func resume(f figures) float64   { return f.Resume }
func response(f figures) float64 { return f.Response }
func resident(f figures) float64 { return f.Resident }

// peak is the largest of all rounds.
func (r *row) peak() float64 {
	var most float64
	for _, f := range r.Samples {
		most = max(most, f.PeakMB)
	}
	return most
}

// target is a promise and how it went.
type target struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Bound float64 `json:"bound"`
	Least bool    `json:"least"` // Bound is a least value, otherwise a greatest
	Pass  bool    `json:"pass"`
}

type results struct {
	Machine   measure.Machine `json:"machine"`
	CacheSize int64           `json:"cache_size"`
	Rows      []*row          `json:"rows"`
	Targets   []target        `json:"targets"`
}

func (r *results) find(mb int, state, way string) *row {
	for _, x := range r.Rows {
		if x.MB == mb && x.State == state && x.Way == way {
			return x
		}
	}
	return nil
}

func (r *results) add(mb int, state, way string, f figures) {
	x := r.find(mb, state, way)
	if x == nil {
		x = &row{MB: mb, State: state, Way: way}
		r.Rows = append(r.Rows, x)
	}
	x.Samples = append(x.Samples, f)
}

// judge works out the targets from what was measured; what was left out leaves its targets out.
func (r *results) judge() {
	smallest, largest := 0, 0
	for _, x := range r.Rows {
		if smallest == 0 || x.MB < smallest {
			smallest = x.MB
		}
		largest = max(largest, x.MB)
	}
	target := func(name string, value, bound float64, least bool) {
		r.Targets = append(r.Targets, target{name, value, bound, least, value == bound || (value > bound) == least})
	}
	for _, w := range []string{wayFirst, wayProfile} {
		x, small := r.find(largest, warm, w), r.find(smallest, warm, w)
		if x == nil {
			continue
		}
		target(fmt.Sprintf("%s: resume at %d MB, ms", w, largest), 1e3*x.of(resume), 100, false)
		if smallest < largest {
			target(fmt.Sprintf("%s: resume at %d MB above %d MB, ms", w, largest, smallest),
				1e3*(x.of(resume)-small.of(resume)), 30, false)
		}
		if c := r.find(largest, warm, wayEager); c != nil {
			target(fmt.Sprintf("%s: resident at %d MB, of criu's, page-cached", w, largest),
				x.of(resident)/c.of(resident), 0.65, false)
		}
	}
	if x := r.find(largest, cold, wayProfile); x != nil {
		if c := r.find(largest, cold, wayEager); c != nil {
			target(fmt.Sprintf("response with a profile, cold, %d MB: times as soon as criu", largest),
				c.of(response)/x.of(response), 5, true)
		}
		if c := r.find(largest, cold, wayLazy); c != nil {
			target(fmt.Sprintf("response with a profile, cold, %d MB: times as soon as criu lazy-pages", largest),
				c.of(response)/x.of(response), 2, true)
		}
	}
	var most float64
	for _, x := range r.Rows {
		most = max(most, x.peak())
	}
	if most > 0 {
		target("peak resident memory of the daemon above --cache-size, MB", most-float64(r.CacheSize>>20), 64, false)
	}
}

func (r *results) print(w io.Writer) {
	rounds := 0
	for _, x := range r.Rows {
		rounds = max(rounds, len(x.Samples))
	}
	fmt.Fprintf(w, "%s. Medians of %d.\n\n", r.Machine, rounds)
	fmt.Fprintf(
		w,
		"| process, page cache | restored by | resume s | first response s | resident s | daemon's peak MB |\n"+
			"|---|---|---:|---:|---:|---:|\n",
	)
	for _, x := range r.Rows {
		peak := ""
		if p := x.peak(); p > 0 {
			peak = fmt.Sprintf("%.0f", p)
		}
		fmt.Fprintf(w, "| %d MB, %s | %s | %.3f | %.3f | %.3f | %s |\n", x.MB, x.State, x.Way, x.of(resume),
			x.of(response), x.of(resident), peak)
	}
	if len(r.Targets) == 0 {
		return
	}
	fmt.Fprintf(w, "\n| target | bound | measured | |\n|---|---:|---:|---|\n")
	for _, t := range r.Targets {
		sign, verdict := "≤", "FAIL"
		if t.Least {
			sign = "≥"
		}
		if t.Pass {
			verdict = "PASS"
		}
		fmt.Fprintf(w, "| %s | %s %.2f | %.2f | %s |\n", t.Name, sign, t.Bound, t.Value, verdict)
	}
}
