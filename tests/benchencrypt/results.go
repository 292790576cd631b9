package main

import (
	"fmt"
	"io"

	"github.com/gpucr/gpucr-fs/tests/measure"
)

// Names of rows.
const (
	rowImport   = "import"
	rowStored   = "stored bytes"
	rowVerify   = "verify"
	rowDump     = "dump"
	rowCold     = "cold read"
	rowResume   = "resume, cached"
	rowResident = "resident, cached"
	rowOpen     = "open"

	rowResumeCold   = "resume, cold"
	rowResidentCold = "resident, cold"

	// cpu ends the name of a row with the processor time of another row's step.
	cpu = ", CPU"
)

// bounds are the greatest ratios, in the order in which they are told; 0: there is none.
var bounds = []struct {
	row   string
	bound float64
}{
	{rowImport, 1.15}, {rowDump, 1.15}, {rowCold, 1.15}, {rowResume, 1.15}, {rowResumeCold, 1.15},
	{rowResident, 1.15}, {rowResidentCold, 1.15}, {rowVerify, 0}, {rowOpen, 0}, {rowStored, 1.01},
	{rowImport + cpu, 0}, {rowDump + cpu, 0}, {rowCold + cpu, 0}, {rowResident + cpu, 0}, {rowResidentCold + cpu, 0},
	{rowVerify + cpu, 0}, {rowOpen + cpu, 0},
}

// target is a promise and how it went.
type target struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Bound float64 `json:"bound,omitempty"` // a greatest value; 0: none was promised
	Pass  bool    `json:"pass"`
}

type results struct {
	Machine measure.Machine               `json:"machine"`
	Samples map[string]map[side][]float64 `json:"samples"`
	Targets []target                      `json:"targets"`
}

func (r *results) add(row string, s side, v float64) {
	if r.Samples[row] == nil {
		r.Samples[row] = map[side][]float64{}
	}
	r.Samples[row][s] = append(r.Samples[row][s], v)
}

func (r *results) median(row string, s side) float64 { return measure.Median(r.Samples[row][s]) }

func (r *results) judge() {
	for _, x := range bounds {
		v := r.median(x.row, encrypted) / r.median(x.row, plain)
		r.Targets = append(r.Targets, target{x.row, v, x.bound, x.bound == 0 || v <= x.bound})
	}
}

func (r *results) print(w io.Writer) {
	fmt.Fprintf(w, "%s. Medians of %d.\n\n", r.Machine, len(r.Samples[rowImport][plain]))
	fmt.Fprintf(w, "| | plain | encrypted | ratio | bound | |\n|---|---:|---:|---:|---:|---|\n")
	for _, t := range r.Targets {
		unit, scale := "s", 1.0
		if t.Name == rowStored {
			unit, scale = "MB", 1e-6
		}
		bound, verdict := "", ""
		if t.Bound > 0 {
			bound, verdict = fmt.Sprintf("≤ %.2f", t.Bound), "FAIL"
			if t.Pass {
				verdict = "PASS"
			}
		}
		fmt.Fprintf(w, "| %s, %s | %.3f | %.3f | %.3f | %s | %s |\n", t.Name, unit, r.median(t.Name, plain)*scale,
			r.median(t.Name, encrypted)*scale, t.Value, bound, verdict)
	}
}
