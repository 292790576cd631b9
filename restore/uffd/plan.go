package uffd

import (
	"fmt"
	"math"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

// Plan is what a server has to know of a checkpoint: which memory of which
// task comes from where. Files are numbered by their place in Files.
type Plan struct {
	// Files are the pages files, as paths below the image directory.
	Files []string
	Tasks []PlanTask
}

// PlanTask is one task of a Plan.
type PlanTask struct {
	PID    int
	Dead   bool
	VMAs   []criuimg.VMA // those that CRIU registers with userfaultfd
	Ranges []PlanRange
	// First are the file ranges with the pages of the task's arguments and environment, at most maxFirst bytes of each.
	// Who reads /proc/PID/cmdline or environ is given nothing for a page that is missing: the kernel does not wait for
	// a userfaultfd there (access_remote_vm). So these are asked for before all others.
	First []prefetch.Range
}

// maxFirst bounds the arguments and environment that are asked for first, in bytes.
const maxFirst = 256 << 10

// PlanRange puts the contents of a file from Off on at Start up to End.
type PlanRange struct {
	Start, End uint64
	File       int
	Off        int64
}

// NewPlan makes the plan for restoring a checkpoint.
func NewPlan(c *criuimg.Checkpoint) *Plan {
	p := &Plan{}
	number := make(map[string]int)
	for _, t := range c.Tasks {
		pt := PlanTask{PID: t.PID, Dead: t.Dead}
		for _, v := range t.VMAs {
			if v.Lazy() {
				pt.VMAs = append(pt.VMAs, v)
			}
		}
		for _, r := range t.Ranges {
			n, ok := number[r.File]
			if !ok {
				n = len(p.Files)
				number[r.File] = n
				p.Files = append(p.Files, r.File)
			}
			pt.Ranges = append(pt.Ranges, PlanRange{r.Start, r.End, n, r.Off})
		}
		for _, s := range []criuimg.Span{t.Args, t.Env} {
			pt.First = append(pt.First, pt.within(s)...)
		}
		p.Tasks = append(p.Tasks, pt)
	}
	return p
}

// within gives the file ranges of the pages of a span, of the first maxFirst bytes of it.
func (t *PlanTask) within(s criuimg.Span) (out []prefetch.Range) {
	if s.End <= s.Start {
		return nil
	}
	start := s.Start &^ (pageSize - 1)
	end := start + min(s.End-start+pageSize-1, maxFirst)&^(pageSize-1)
	i, _ := slices.BinarySearchFunc(t.Ranges, start, func(r PlanRange, at uint64) int {
		if r.End <= at {
			return -1
		}
		return 1
	})
	for ; i < len(t.Ranges) && t.Ranges[i].Start < end; i++ {
		r := t.Ranges[i]
		from, to := max(r.Start, start), min(r.End, end)
		out = append(out, prefetch.Range{File: r.File, Off: r.Off + int64(from-r.Start), Len: int64(to - from)})
	}
	return out
}

// Validate reports whether the plan can be followed.
func (p *Plan) Validate() error {
	if len(p.Tasks) == 0 {
		return fmt.Errorf("plan has no task")
	}
	for _, t := range p.Tasks {
		var last uint64
		for _, r := range t.Ranges {
			if r.Start < last || r.End <= r.Start || r.Off < 0 || (r.Start|r.End|uint64(r.Off))%pageSize != 0 ||
				r.File < 0 || r.File >= len(p.Files) || r.Off > math.MaxInt64-int64(r.End-r.Start) {
				return fmt.Errorf("plan of task %d has a bad range %+v", t.PID, r)
			}
			last = r.End
		}
		for _, r := range t.First {
			if r.File < 0 || r.File >= len(p.Files) || r.Off < 0 || r.Len <= 0 || r.Len > maxFirst ||
				(r.Off|r.Len)%pageSize != 0 {
				return fmt.Errorf("plan of task %d asks first for a bad range %+v", t.PID, r)
			}
		}
	}
	return nil
}

// Ranges returns all file ranges that the tasks need, in the order of tasks
// and addresses, neighbours joined.
func (p *Plan) Ranges() []prefetch.Range {
	var out []prefetch.Range
	for _, t := range p.Tasks {
		for _, r := range t.Ranges {
			n := int64(r.End - r.Start)
			if k := len(out) - 1; k >= 0 && out[k].File == r.File && out[k].Off+out[k].Len == r.Off {
				out[k].Len += n
				continue
			}
			out = append(out, prefetch.Range{File: r.File, Off: r.Off, Len: n})
		}
	}
	return out
}

// Bytes returns how much memory the plan fills.
func (p *Plan) Bytes() int64 {
	var n int64
	for _, t := range p.Tasks {
		for _, r := range t.Ranges {
			n += int64(r.End - r.Start)
		}
	}
	return n
}

func (t *PlanTask) space(files int) *space {
	ps := make([]*piece, len(t.Ranges))
	vmas := t.VMAs
	for i, r := range t.Ranges {
		for len(vmas) > 0 && vmas[0].End <= r.Start {
			vmas = vmas[1:]
		}
		ps[i] = &piece{start: r.Start, end: r.End, file: r.File, off: r.Off}
		ps[i].wiped = len(vmas) > 0 && vmas[0].Start <= r.Start && vmas[0].Madvise&(1<<unix.MADV_WIPEONFORK) != 0
	}
	return newSpace(files, t.VMAs, ps)
}
