package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpucr/gpucr-fs/tests/measure"
)

type importResult struct {
	Tool    string    `json:"tool"`
	Remark  string    `json:"remark,omitempty"`
	Seconds []float64 `json:"seconds"` // for all dumps together, one a round
	Stored  int64     `json:"stored"`  // bytes on disk for all dumps, median
}

// target is a promise and how it went. Better says whether more or less is better.
type target struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Bound float64 `json:"bound"`
	Least bool    `json:"least"` // Bound is a least value, otherwise a greatest
	Pass  bool    `json:"pass"`
}

type results struct {
	Machine  measure.Machine      `json:"machine"`
	Versions map[string]string    `json:"versions"`
	Logical  int64                `json:"logical"` // bytes of all dumps
	Imports  []importResult       `json:"imports,omitempty"`
	Samples  map[string][]float64 `json:"samples"` // seconds, bytes or bytes a second, one a round
	Targets  []target             `json:"targets"`
	Notes    []string             `json:"notes,omitempty"`
}

func newResults() *results {
	return &results{Versions: map[string]string{}, Samples: map[string][]float64{}}
}

func (r *results) add(name string, v float64)    { r.Samples[name] = append(r.Samples[name], v) }
func (r *results) samples(name string) []float64 { return r.Samples[name] }
func (r *results) median(name string) float64    { return measure.Median(r.Samples[name]) }
func (r *results) has(names ...string) bool {
	return !slices.ContainsFunc(names, func(n string) bool { return len(r.Samples[n]) == 0 })
}

// judge works out the targets from what was measured; parts that were left out leave theirs out.
func (r *results) judge() {
	ratio := func(name, over, under string, bound float64, least bool) {
		if !r.has(over, under) {
			return
		}
		v := r.median(over) / r.median(under)
		r.Targets = append(r.Targets, target{name, v, bound, least, v == bound || (v > bound) == least})
	}
	fastest := ""
	for _, peer := range []string{nameRestic, nameBorg, nameDesync} {
		if key := "import " + peer; r.has(key) && (fastest == "" || r.median(key) < r.median(fastest)) {
			fastest = key
		}
	}
	ratio("import: times as fast as "+strings.TrimPrefix(fastest, "import ")+", the fastest of the peers", fastest,
		"import "+nameGpucr, 3, true)
	ratio("import: times as fast as cp -r + sync", "import "+nameCp, "import "+nameGpucr, 0.5, true)
	ratio("stored bytes, of restic's", "stored "+nameGpucr, "stored "+nameRestic, 1, false)
	ratio("cold read, of desync mount-index's rate", "read cold mount", "read cold "+nameDesync, 4, true)
	ratio("cold read, of ext4's rate", "read cold mount", "read cold ext4", 0.7, true)
	ratio("page-cached read, of ext4's rate", "read cached mount", "read cached ext4", 0.65, true)
	ratio("eager criu restore, page-cached, of ext4's time", "restore mount", "restore ext4", 1.35, false)
	ratio("criu dump until sealed, empty store, of ext4's time", "dump mount first", "dump ext4", 3, false)
	ratio("criu dump until sealed, second dump, of ext4's time", "dump mount second", "dump ext4", 3, false)
	for _, c := range corpora {
		ratio(c.name+", optimized: stored bytes, of restic's", c.name+", "+optimized, c.name+", "+nameRestic, c.bound,
			false)
	}
	ratio("optimized: cold read, of the rate before", "read cold "+optimized, "read cold "+imported, 1/1.1, true)
	ratio("optimized: resume with cold caches, of the time before", "resume "+optimized, "resume "+imported, 1.1, false)
}

func (r *results) print(w io.Writer) {
	fmt.Fprintf(w, "Machine: %s. Medians of %d.\n", r.Machine, r.rounds())
	for _, n := range r.Notes {
		fmt.Fprintf(w, "%s.\n", n)
	}
	if len(r.Imports) > 0 {
		fmt.Fprintf(w, "\n| four dumps, %.0f MB | seconds | stored MB | version |\n|---|---:|---:|---|\n",
			float64(r.Logical)/1e6)
		for _, i := range r.Imports {
			name := i.Tool
			if i.Remark != "" {
				name += " (" + i.Remark + ")"
			}
			fmt.Fprintf(w, "| %s | %.2f | %.0f | %s |\n", name, measure.Median(i.Seconds), float64(i.Stored)/1e6,
				r.Versions[i.Tool])
		}
	}
	if r.has("read cold ext4") {
		fmt.Fprintf(w, "\n| sequential read | cold MB/s | page-cached MB/s |\n|---|---:|---:|\n")
		for _, n := range []string{"ext4", "mount", singlePages, nameDesync} {
			switch {
			case r.has("read cold " + n):
				fmt.Fprintf(w, "| %s | %.0f | %.0f |\n", n, r.median("read cold "+n)/1e6,
					r.median("read cached "+n)/1e6)
			case r.has("read cached " + n):
				fmt.Fprintf(w, "| %s | | %.0f |\n", n, r.median("read cached "+n)/1e6)
			}
		}
	}
	r.printOptimized(w)
	var rows []string
	for _, n := range []string{"restore ext4", "restore mount", "dump ext4", "dump ext4 synced", "dump mount first",
		"dump mount second"} {
		if r.has(n) {
			rows = append(rows, fmt.Sprintf("| %s | %.2f |\n", n, r.median(n)))
		}
	}
	if len(rows) > 0 {
		fmt.Fprintf(w, "\n| criu | seconds |\n|---|---:|\n%s", strings.Join(rows, ""))
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

// printOptimized prints what is stored before and after optimize, and how it is read.
func (r *results) printOptimized(w io.Writer) {
	if !r.has(corpora[0].name + ", " + optimized) {
		return
	}
	fmt.Fprintf(w, "\n| stored MB | %s | gpucr-fs, %s | gpucr-fs, %s |\n|---|---:|---:|---:|\n", nameRestic, imported,
		optimized)
	for _, c := range corpora {
		fmt.Fprintf(w, "| %s | %.0f | %.0f | %.0f |\n", c.name, r.median(c.name+", "+nameRestic)/1e6,
			r.median(c.name+", "+imported)/1e6, r.median(c.name+", "+optimized)/1e6)
	}
	fmt.Fprintf(w, "\n| store | cold read MB/s | resume, cold, s |\n|---|---:|---:|\n")
	for _, n := range []string{imported, optimized} {
		fmt.Fprintf(w, "| %s | %.0f | %.3f |\n", n, r.median("read cold "+n)/1e6, r.median("resume "+n))
	}
}

// rounds gives how often the parts had their turn. A round has three resumes.
func (r *results) rounds() int {
	most := 0
	for name, s := range r.Samples {
		n := len(s)
		if strings.HasPrefix(name, "resume ") {
			n /= 3
		}
		most = max(most, n)
	}
	return most
}
