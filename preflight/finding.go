package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Effect is what a finding stops.
type Effect string

// Effects, the worst first.
const (
	// Loses: the dump would succeed, and the process could not go on or come back: its GPU state is lost.
	Loses Effect = "loses"
	// Stops: CRIU or the driver refuses the dump; the process goes on.
	Stops Effect = "stops"
	// Elsewhere: a restore on another machine, or here at another time, needs something.
	Elsewhere Effect = "elsewhere"
	// Note: worth knowing; it stops nothing.
	Note Effect = "note"
)

var severity = []Effect{Loses, Stops, Elsewhere, Note}

// Finding is one obstacle of one process.
type Finding struct {
	Kind   string `json:"kind"` // a short name, stable: "io_uring"
	PID    int    `json:"pid"`
	Name   string `json:"name"` // the process's
	Effect Effect `json:"effect"`
	What   string `json:"what"`
	Do     string `json:"do,omitempty"` // "" where nothing helps
}

func (f Finding) String() string {
	s := fmt.Sprintf("process %d (%s): %s", f.PID, f.Name, f.What)
	if f.Do != "" {
		s += "; " + f.Do
	}
	return s
}

// GPU is an NVIDIA GPU and who has a context on it.
type GPU struct {
	Minor     int    `json:"minor"` // of /dev/nvidiaN
	UUID      string `json:"uuid,omitempty"`
	Model     string `json:"model,omitempty"`
	Processes []int  `json:"processes,omitempty"`
}

// Report is what Look has found.
type Report struct {
	Root      int       `json:"root"`
	Processes int       `json:"processes"`
	Driver    string    `json:"driver,omitempty"` // version of NVIDIA's, "" without one
	GPUs      []GPU     `json:"gpus,omitempty"`
	Findings  []Finding `json:"findings"`
}

// Blocking are the findings that a dump has to stop for.
func (r Report) Blocking() []Finding {
	return slices.DeleteFunc(
		slices.Clone(r.Findings),
		func(f Finding) bool { return f.Effect != Stops && f.Effect != Loses },
	)
}

// Of are the processes with findings of a kind that the dump takes care of.
func (r Report) Of(kind string) (pids []int) {
	for _, f := range r.Findings {
		if f.Kind == kind && f.Effect == Note {
			pids = append(pids, f.PID)
		}
	}
	return pids
}

// OK tells that no known problem prevents a dump.
func (r Report) OK() bool { return len(r.Blocking()) == 0 }

// sort puts the worst first, then orders by process.
func (r *Report) sort() {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(
			slices.Index(severity, a.Effect)-slices.Index(severity, b.Effect),
			a.PID-b.PID,
			strings.Compare(a.Kind, b.Kind),
		)
	})
}

// rule is what is known of one kind of obstacle.
type rule struct {
	effect Effect
	what   string // %s: the details
	do     string
}

// details are what was seen of one kind in one process.
type details struct {
	some  []string
	count int
}

// shown is how many details a finding names.
const shown = 3

func (d *details) add(text string) {
	if d.count++; len(d.some) < shown {
		d.some = append(d.some, text)
	}
}

func (d *details) String() string {
	s := strings.Join(d.some, ", ")
	if more := d.count - len(d.some); more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}
