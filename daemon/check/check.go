// Package check answers whether a checkpoint can be restored on a host: kernel, CRIU, images, CPU, memory, GPUs.
//
// A process on the host describes it ([ReadHost]). That need not be the process that holds the store, nor the machine
// it runs on: a copied topology tree will do. Each section looks at one thing and says what it found, what stands in
// the way, or that it could not look. The list of sections is [sections]; a new one is a function entered there, and
// the facts it needs are fields of [Host].
package check

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"

	"github.com/gpucr/gpucr-fs/daemon/gpu"
	"github.com/gpucr/gpucr-fs/daemon/inspect"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/topology"
)

// State is what a section came to.
type State string

const (
	// OK: nothing stands in the way.
	OK State = "ok"
	// Failed: the restore would fail.
	Failed State = "failed"
	// Unchecked: the host does not tell.
	Unchecked State = "not checked"
)

// Section is the answer about one thing.
type Section struct {
	Name     string          `json:"name"`
	State    State           `json:"state"`
	Facts    []string        `json:"facts,omitempty"`    // what was found, a line each
	Problems []string        `json:"problems,omitempty"` // what stands in the way, a line each
	Details  json.RawMessage `json:"details,omitempty"`  // the same for programs
}

// fact adds a line.
func (s *Section) fact(format string, a ...any) { s.Facts = append(s.Facts, fmt.Sprintf(format, a...)) }

// problem adds a line, unless it is there already, and fails the section.
func (s *Section) problem(format string, a ...any) {
	if line := fmt.Sprintf(format, a...); !slices.Contains(s.Problems, line) {
		s.Problems = append(s.Problems, line)
	}
	s.State = Failed
}

// unchecked says why a section could not look.
func (s *Section) unchecked(format string, a ...any) {
	s.fact(format, a...)
	if s.State == OK {
		s.State = Unchecked
	}
}

// Report is the answer about a checkpoint. OK says that no section failed.
type Report struct {
	Checkpoint string    `json:"checkpoint"`
	OK         bool      `json:"ok"`
	Sections   []Section `json:"sections"`
}

// Failed names the sections that failed.
func (r Report) Failed() []string {
	var out []string
	for _, s := range r.Sections {
		if s.State == Failed {
			out = append(out, s.Name)
		}
	}
	return out
}

// Unchecked names the sections that could not look.
func (r Report) Unchecked() []string {
	var out []string
	for _, s := range r.Sections {
		if s.State == Unchecked {
			out = append(out, s.Name)
		}
	}
	return out
}

// Request is what is asked.
type Request struct {
	Host     Host              // where the checkpoint is to be restored
	Settings topology.Settings // of CRIU's amdgpu plugin there
	// Memory is the checkpoint with its parents below it, as for a restore; nil leaves out whether its memory can be
	// brought on demand.
	Memory fs.FS
	// Verify reads the payload; nil leaves that out.
	Verify func(context.Context) (index.VerifyResult, error)
}

// subject is what sections look at.
type subject struct {
	Request
	c      *index.Checkpoint
	images *inspect.Report // nil where there are none, or none that can be read
	imgErr error
	gpus   *image.Set // nil likewise
	gpuDir string
	gpuErr error
}

// sections are run in this order.
var sections = []struct {
	name string
	run  func(context.Context, *subject, *Section) error
}{
	{"kernel", kernel},
	{"criu", criu},
	{"images", images},
	{"cpu", cpu},
	{"memory", memory},
	{"amd gpus", amdGPUs},
	{"nvidia gpus", nvidiaGPUs},
}

// Run answers about a checkpoint. An error is one of the store or of the context; what is wrong with the checkpoint or
// the host is in the report.
func Run(ctx context.Context, c *index.Checkpoint, r Request) (Report, error) {
	s := &subject{Request: r, c: c}
	if dir, ok := inspect.Find(c.FS()); ok {
		s.images, s.imgErr = inspect.Read(c.FS(), dir)
	}
	s.gpus, s.gpuDir, s.gpuErr = gpu.Read(c.FS())
	out := Report{Checkpoint: c.Info().Name, OK: true, Sections: []Section{}}
	for _, sec := range sections {
		res := Section{Name: sec.name, State: OK}
		if err := sec.run(ctx, s, &res); err != nil {
			return Report{}, fmt.Errorf("check %s: %w", sec.name, err)
		}
		out.OK = out.OK && res.State != Failed
		out.Sections = append(out.Sections, res)
	}
	return out, nil
}
