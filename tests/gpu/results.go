package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// run is one restore: seconds since it was asked for. Zero: not measured.
type run struct {
	Resume   float64 `json:"resume"`
	GPU      float64 `json:"gpu"` // all GPU processes work again
	Answer   float64 `json:"answer"`
	Resident float64 `json:"resident"`
	Driver   float64 `json:"driver"` // what the driver's restore and unlock took of it
}

// series are the runs of one kind of restore.
type series struct {
	Kind  string `json:"kind"`
	Cache string `json:"cache"`
	Runs  []run  `json:"runs"`
}

// share is how much of a checkpoint was new to the store.
type share struct {
	What    string `json:"what"`
	Logical int64  `json:"logical"`
	Zero    int64  `json:"zero"`
	Unique  int64  `json:"unique"` // bytes of its contents that no other checkpoint has
	Grown   int64  `json:"grown"`  // what the store's packs grew by on disk
}

// dumpSeries are the runs of one kind of dump.
type dumpSeries struct {
	What string    `json:"what"`
	Runs []dumpRun `json:"runs"`
}

type results struct {
	Machine  []string      `json:"machine"`
	Series   []*series     `json:"series"`
	Dumps    []*dumpSeries `json:"dumps"`
	Copies   []*series     `json:"copies"`
	Kills    []struck      `json:"kills"`
	Aims     []aim         `json:"aims"`
	Shares   []share       `json:"shares"`
	Facts    []string      `json:"facts"`    // what was shown beside
	Programs []outcome     `json:"programs"` // of the matrix
	Failures []string      `json:"failures"`
}

func newResults() *results { return &results{} }

func (r *results) add(kind, cache string, x run) {
	i := slices.IndexFunc(r.Series, func(s *series) bool { return s.Kind == kind && s.Cache == cache })
	if i < 0 {
		r.Series = append(r.Series, &series{Kind: kind, Cache: cache})
		i = len(r.Series) - 1
	}
	r.Series[i].Runs = append(r.Series[i].Runs, x)
}

func (r *results) find(kind, cache string) *series {
	for _, s := range r.Series {
		if s.Kind == kind && s.Cache == cache {
			return s
		}
	}
	return nil
}

// copies gives the series of one kind of several processes at once.
func (r *results) copies(kind string) *series {
	i := slices.IndexFunc(r.Copies, func(s *series) bool { return s.Kind == kind })
	if i < 0 {
		r.Copies = append(r.Copies, &series{Kind: kind})
		i = len(r.Copies) - 1
	}
	return r.Copies[i]
}

// dumps gives the series of one kind of dump.
func (r *results) dumps(what string) *dumpSeries {
	i := slices.IndexFunc(r.Dumps, func(s *dumpSeries) bool { return s.What == what })
	if i < 0 {
		r.Dumps = append(r.Dumps, &dumpSeries{What: what})
		i = len(r.Dumps) - 1
	}
	return r.Dumps[i]
}

// median of one of the values; 0 without any.
func (s *series) median(f func(run) float64) float64 {
	if s == nil {
		return 0
	}
	return medianOf(s.Runs, f)
}

func (s *dumpSeries) median(f func(dumpRun) float64) float64 { return medianOf(s.Runs, f) }

func medianOf[T any](runs []T, f func(T) float64) float64 {
	var v []float64
	for _, x := range runs {
		if f(x) > 0 {
			v = append(v, f(x))
		}
	}
	return median(v)
}

// median of some values; 0 without any.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

func resume(x run) float64   { return x.Resume }
func gpuReady(x run) float64 { return x.GPU }
func answered(x run) float64 { return x.Answer }
func resident(x run) float64 { return x.Resident }
func driver(x run) float64   { return x.Driver }

func seconds(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f", v)
}

func (r *results) print(w io.Writer) {
	fmt.Fprintf(w, "\n\n# Results\n\n")
	for _, m := range r.Machine {
		fmt.Fprintln(w, m)
	}
	if len(r.Programs) > 0 {
		r.printPrograms(w)
		return
	}
	r.printSeries(w)
	r.printDumps(w)
	r.printCopies(w)
	r.printKills(w)
	r.printAims(w)
	r.printShares(w)
	fmt.Fprintln(w)
	for _, f := range r.Facts {
		fmt.Fprintln(w, "-", f)
	}
	for _, f := range r.Failures {
		fmt.Fprintln(w, "- FAILED:", f)
	}
}

// printPrograms prints the matrix.
func (r *results) printPrograms(w io.Writer) {
	fmt.Fprintf(w, "\n| program | outcome | dump s | restore s | images MB |\n|---|---|---:|---:|---:|\n")
	for _, p := range r.Programs {
		what := p.Result
		if p.Why != "" {
			why, _, _ := strings.Cut(p.Why, "\n")
			what += ": " + why
		}
		if !p.Good {
			what = "**" + what + "**"
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %d |\n", p.Name, what, seconds(p.Dump), seconds(p.Restore), p.Size/1e6)
	}
	fmt.Fprintln(w)
	for _, p := range r.Programs {
		for _, f := range p.Check {
			fmt.Fprintf(w, "- check --pid, %s: %s\n", p.Name, f)
		}
	}
	for _, f := range r.Failures {
		fmt.Fprintln(w, "- FAILED:", f)
	}
}

func percent(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return 100 * float64(a) / float64(b)
}

// aims holds the whole show against what it is to reach. The driver's own time is that of the eager restore, whose
// memory is all there.
func (r *results) aims() {
	eager := r.find(kindEager, warm)
	for _, kind := range []string{kindFirst, kindProfile} {
		s := r.find(kind, warm)
		r.aim("CPU resume, "+kind, 0.100, s.median(resume))
		r.aim("first answer, a third of eager criu's, "+kind, eager.median(answered)/3, s.median(answered))
		r.aim(
			"first answer, 1.25 × the driver's own restore + 0.15 s, "+kind,
			plus(1.25*eager.median(driver), 0.15),
			s.median(answered),
		)
		r.aim("resident, GPU ready + 0.2 s, "+kind, plus(s.median(gpuReady), 0.2), s.median(resident))
	}
}

func since(t time.Time) float64 { return time.Since(t).Seconds() }
