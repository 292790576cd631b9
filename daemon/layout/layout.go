// Package layout tells where in the address spaces of a checkpoint's processes its memory lies, and its hot set: the
// pages that a restore touched first, as its profile has them.
//
// An address space is nearly all empty. It is given as the mapped bytes one after another, cut into as many equal cells
// as fit on a screen, whatever the number of mappings. There are no locks.
package layout

import (
	"io/fs"
	"slices"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

// Bounds of what is told.
const (
	maxProcesses = 24
	maxCells     = 480
	maxAreas     = 24
)

// Process is the memory of one process.
type Process struct {
	PID    int    `json:"pid"`
	Mapped uint64 `json:"mapped"` // bytes of all mappings
	Stored uint64 `json:"stored"` // of them what a restore brings on demand
	Hot    uint64 `json:"hot"`    // of them what the profile has
	Cell   uint64 `json:"cell"`   // mapped bytes in one cell; the last may have fewer
	// StoredIn and HotIn are the bytes of each cell.
	StoredIn []uint64 `json:"stored_in"`
	HotIn    []uint64 `json:"hot_in"`
	Areas    []Area   `json:"areas"`
}

// Area is a part of the address space without large holes.
type Area struct {
	Start uint64 `json:"start"` // the first address
	End   uint64 `json:"end"`
	Begin uint64 `json:"begin"` // how many mapped bytes lie before it
	Heap  bool   `json:"heap,omitempty"`
	Stack bool   `json:"stack,omitempty"`
}

// Bits of a mapping's status, from CRIU's image.h.
const (
	vmaStack = 1 << 1
	vmaHeap  = 1 << 5
)

// Of gives the processes with the most memory, and how many there are. fsys shows the images as a restore sees them; p
// may be nil.
func Of(fsys fs.FS, p *prefetch.Profile) (list []Process, all int, err error) {
	c, err := criuimg.Load(fsys)
	if err != nil {
		return nil, 0, err
	}
	tasks := slices.DeleteFunc(c.Tasks, func(t criuimg.Task) bool { return len(t.VMAs) == 0 })
	slices.SortStableFunc(tasks, func(a, b criuimg.Task) int {
		switch x, y := a.LazyBytes(), b.LazyBytes(); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	hot := hotRuns(p)
	list = []Process{}
	for i := range tasks[:min(len(tasks), maxProcesses)] {
		list = append(list, process(&tasks[i], hot))
	}
	return list, len(tasks), nil
}

// run is a run of bytes of a file.
type run struct{ from, to int64 }

// hotRuns gives the touches of each file, rising and without overlap.
func hotRuns(p *prefetch.Profile) map[string][]run {
	if p == nil {
		return nil
	}
	hot := map[string][]run{}
	for _, t := range p.Touches {
		name := p.Files[t.File]
		hot[name] = append(hot[name], run{t.Off, t.Off + t.Len})
	}
	for _, runs := range hot {
		slices.SortFunc(runs, func(a, b run) int {
			if a.from < b.from {
				return -1
			}
			return 1
		})
	}
	return hot
}

// strip adds bytes to cells.
type strip struct {
	cell  uint64
	cells []uint64
}

func (s strip) add(at, n uint64) {
	for n > 0 {
		i := at / s.cell
		k := min(n, (i+1)*s.cell-at)
		s.cells[i] += k
		at, n = at+k, n-k
	}
}

func process(t *criuimg.Task, hot map[string][]run) Process {
	out := Process{PID: t.PID, Areas: areas(t.VMAs)}
	for _, v := range t.VMAs {
		out.Mapped += v.End - v.Start
	}
	pages := out.Mapped / criuimg.PageSize
	out.Cell = max((pages+maxCells-1)/maxCells, 1) * criuimg.PageSize
	n := (out.Mapped + out.Cell - 1) / out.Cell
	stored, warm := strip{out.Cell, make([]uint64, n)}, strip{out.Cell, make([]uint64, n)}
	next, before := 0, uint64(0) // the mapping that holds the range, and the mapped bytes before it
	for _, r := range t.Ranges {
		for next < len(t.VMAs) && t.VMAs[next].End <= r.Start {
			before += t.VMAs[next].End - t.VMAs[next].Start
			next++
		}
		if next == len(t.VMAs) || r.Start < t.VMAs[next].Start || r.End > t.VMAs[next].End {
			continue
		}
		at, size := before+r.Start-t.VMAs[next].Start, r.End-r.Start
		stored.add(at, size)
		out.Stored += size
		runs := hot[r.File]
		i, _ := slices.BinarySearchFunc(runs, r.Off, func(x run, off int64) int {
			if x.to <= off {
				return -1
			}
			return 1
		})
		for end := r.Off + int64(size); i < len(runs) && runs[i].from < end; i++ {
			from, to := max(runs[i].from, r.Off), min(runs[i].to, end)
			if from < to {
				warm.add(at+uint64(from-r.Off), uint64(to-from))
				out.Hot += uint64(to - from)
			}
		}
	}
	out.StoredIn, out.HotIn = stored.cells, warm.cells
	return out
}

// areas joins mappings until there are few enough: those with the smallest holes between them first.
func areas(vmas []criuimg.VMA) []Area {
	holes := make([]uint64, 0, len(vmas))
	for i := 1; i < len(vmas); i++ {
		holes = append(holes, vmas[i].Start-vmas[i-1].End)
	}
	slices.Sort(holes)
	least := uint64(1 << 30) // a hole that parts two areas is at least as large
	if n := len(holes); n >= maxAreas {
		least = max(least, holes[n-maxAreas+1]+1)
	}
	var out []Area
	var mapped uint64
	for i, v := range vmas {
		if i == 0 || v.Start-vmas[i-1].End >= least {
			out = append(out, Area{Start: v.Start, Begin: mapped})
		}
		a := &out[len(out)-1]
		a.End = v.End
		a.Heap = a.Heap || v.Status&vmaHeap != 0
		a.Stack = a.Stack || v.Status&vmaStack != 0
		mapped += v.End - v.Start
	}
	return out
}
