package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpucr/gpucr-fs/tests/actors"
)

// aim is what a measurement is held against. Got 0: not measured.
type aim struct {
	What  string  `json:"what"`
	Bound float64 `json:"bound"`
	Got   float64 `json:"got"`
}

func (a aim) verdict() string {
	switch {
	case a.Got == 0 || a.Bound == 0:
		return "not measured"
	case a.Got > a.Bound:
		return "missed"
	}
	return "met"
}

// aims holds a measurement against an aim.
func (r *results) aim(what string, bound, got float64) {
	r.Aims = append(r.Aims, aim{what, bound, got})
}

func (r *results) printAims(w io.Writer) {
	if len(r.Aims) == 0 {
		return
	}
	fmt.Fprintf(w, "\n| target | bound | measured | |\n|---|---:|---:|---|\n")
	for _, a := range r.Aims {
		fmt.Fprintf(w, "| %s | ≤ %s | %s | %s |\n", a.What, seconds(a.Bound), seconds(a.Got), a.verdict())
	}
}

// printSeries prints the restores.
func (r *results) printSeries(w io.Writer) {
	if len(r.Series) == 0 {
		return
	}
	fmt.Fprintf(w, "\n| restore | runs | CPU resume | GPU ready | first answer | resident | of it the driver |\n")
	fmt.Fprintf(w, "|---|---:|---:|---:|---:|---:|---:|\n")
	for _, s := range r.Series {
		fmt.Fprintf(
			w, "| %s, %s | %d | %s | %s | %s | %s | %s |\n", s.Kind, s.Cache, len(s.Runs), seconds(s.median(resume)),
			seconds(s.median(gpuReady)), seconds(s.median(answered)), seconds(s.median(resident)),
			seconds(s.median(driver)),
		)
	}
}

// printDumps prints the dumps of -models.
func (r *results) printDumps(w io.Writer) {
	if len(r.Dumps) == 0 {
		return
	}
	fmt.Fprintf(
		w,
		"\n| dump | runs | lock | checkpoint | criu | all | the way back |\n|---|---:|---:|---:|---:|---:|---:|\n",
	)
	for _, d := range r.Dumps {
		fmt.Fprintf(w, "| %s | %d | %s | %s | %s | %s | %s |\n", d.What, len(d.Runs), seconds(d.median(locked)),
			seconds(d.median(checkpointed)), seconds(d.median(byCRIU)), seconds(d.median(all)), seconds(d.median(back)))
	}
}

// printShares prints what checkpoints added to the store.
func (r *results) printShares(w io.Writer) {
	if len(r.Shares) == 0 {
		return
	}
	fmt.Fprintf(w, "\n| checkpoint | logical bytes | zero | not shared | of the logical size | the store grew by |\n")
	fmt.Fprintf(w, "|---|---:|---:|---:|---:|---:|\n")
	for _, s := range r.Shares {
		fmt.Fprintf(w, "| %s | %d | %.1f %% | %d | %.2f %% | %d (%.2f %%) |\n", s.What, s.Logical,
			percent(s.Zero, s.Logical), s.Unique, percent(s.Unique, s.Logical),
			s.Grown, percent(s.Grown, s.Logical))
	}
}

// printKills prints what -kills came to: a line for each actor, and one for each step.
func (r *results) printKills(w io.Writer) {
	if len(r.Kills) == 0 {
		return
	}
	table := func(head string, order []string, of func(struck) string) {
		fmt.Fprintf(
			w,
			"\n| %s | kills | not there | dumped all the same | all answer after, median | at most | lost, hung "+
				"or wrong |\n",
			head,
		)
		fmt.Fprintf(w, "|---|---:|---:|---:|---:|---:|---:|\n")
		for _, name := range append(slices.Clone(order), "") {
			kills, absent, dumped, lost := 0, 0, 0, 0
			var backs []float64
			for _, k := range r.Kills {
				if name != "" && of(k) != name {
					continue
				}
				if !k.Killed {
					absent++
					continue
				}
				kills++
				if k.Dumped {
					dumped++
				}
				if k.Problem != "" {
					lost++
				} else {
					backs = append(backs, k.Back)
				}
			}
			if kills+absent == 0 {
				continue
			}
			if name == "" {
				name = "all"
			}
			longest := 0.0
			if len(backs) > 0 {
				longest = slices.Max(backs)
			}
			fmt.Fprintf(
				w, "| %s | %d | %d | %d | %s | %s | %d |\n", name, kills, absent, dumped, seconds(median(backs)),
				seconds(longest), lost,
			)
		}
	}
	table(
		"killed",
		[]string{actors.Command, actors.Holder, actors.CRIU, actors.Daemon},
		func(k struck) string { return k.Actor },
	)
	table("step", actors.Order, func(k struck) string { return k.Step })
	for i, k := range r.Kills {
		if k.Problem != "" {
			fmt.Fprintf(
				w, "\n- kill %d, %s, %s, after %.3f s: %s\n", i+1, k.Actor, k.Step, k.At,
				strings.TrimSpace(k.Problem),
			)
		}
	}
}

// printCopies prints what -copies came to.
func (r *results) printCopies(w io.Writer) {
	if len(r.Copies) == 0 {
		return
	}
	fmt.Fprintf(
		w,
		"\n| at once | runs | last CPU resume | last GPU ready | last first answer | all resident |\n"+
			"|---|---:|---:|---:|---:|---:|\n",
	)
	for _, s := range r.Copies {
		fmt.Fprintf(w, "| %s | %d | %s | %s | %s | %s |\n", s.Kind, len(s.Runs), seconds(s.median(resume)),
			seconds(s.median(gpuReady)), seconds(s.median(answered)), seconds(s.median(resident)))
	}
}
