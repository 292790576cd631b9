package restore

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Mark is a moment of a restore.
type Mark struct {
	Name string    `json:"name"`
	At   time.Time `json:"-"`
	// Ms is when it was, in milliseconds since the start.
	Ms float64 `json:"ms"`
}

// Names of the marks that every restore has or may have, beside CRIU's own.
const (
	MarkPrepared   = "prepared"    // mount and lazy-pages server are there
	MarkResume     = "resume"      // the processes run
	MarkFirstFault = "first fault" // somebody waited for memory for the first time
	MarkHotDone    = "hot set done"
	MarkResident   = "resident"  // nothing is left to fetch
	MarkGPUReady   = "gpu ready" // the GPUs have their state back
)

// Sources are bytes by where they came from, or why they were fetched.
type Sources struct {
	// Images were read by CRIU through the mount; the others were put into memory by the lazy-pages server: because
	// somebody waited, because of the profile, and because everything has to be there in the end.
	Images int64 `json:"images"`
	Demand int64 `json:"demand"`
	Hot    int64 `json:"hot"`
	Sweep  int64 `json:"sweep"`
	// Zero of them were zero pages, which are stored nowhere.
	Zero int64 `json:"zero"`
}

// Timeline tells what happened when in a restore.
type Timeline struct {
	Checkpoint string    `json:"checkpoint"`
	PID        int       `json:"pid"`
	Inside     int       `json:"inside,omitempty"` // its pid in the namespace of its own that was made for it
	Started    time.Time `json:"started"`
	Marks      []Mark    `json:"marks"`
	Bytes      Sources   `json:"bytes"`
	Faults     int64     `json:"faults"`
	Profile    bool      `json:"profile"` // a profile was replayed
}

// Add enters moments; those that have not come are left out.
func (t *Timeline) Add(marks ...Mark) {
	for _, m := range marks {
		if !m.At.IsZero() {
			m.Ms = float64(m.At.Sub(t.Started).Microseconds()) / 1000
			t.Marks = append(t.Marks, m)
		}
	}
	slices.SortStableFunc(t.Marks, func(a, b Mark) int { return a.At.Compare(b.At) })
}

// At gives when a mark was, after the start; false when it has not come.
func (t *Timeline) At(name string) (time.Duration, bool) {
	for _, m := range t.Marks {
		if m.Name == name {
			return time.Duration(m.Ms * float64(time.Millisecond)), true
		}
	}
	return 0, false
}

// Write writes the timeline as JSON and as a picture beside it: FILE.json and FILE.svg, whichever of these name was
// given, or none.
func (t *Timeline) Write(name string) error {
	stem := strings.TrimSuffix(strings.TrimSuffix(name, ".json"), ".svg")
	if stem == "" {
		return errors.New("the timeline needs a file name")
	}
	text, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(stem+".json", append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the timeline: %w", err)
	}
	if err := os.WriteFile(stem+".svg", t.SVG(), 0o644); err != nil {
		return fmt.Errorf("write the timeline: %w", err)
	}
	return nil
}
