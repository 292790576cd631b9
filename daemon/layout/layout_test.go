package layout

import (
	"testing"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

const page = criuimg.PageSize

// Whatever the mappings, cells and areas are few, and no byte is lost or counted twice.
func TestProcess(t *testing.T) {
	task := criuimg.Task{PID: 7}
	var off int64
	profile := &prefetch.Profile{
		Files:   []string{"inventory.img", "pages-1.img"},
		Touches: []prefetch.Range{{File: 0, Len: 100}},
	}
	for i := range uint64(3000) {
		start := i * 5 << 30
		task.VMAs = append(task.VMAs, criuimg.VMA{Start: start, End: start + (i%7+1)*page, Status: vmaHeap})
		task.Ranges = append(task.Ranges, criuimg.Range{Start: start, End: start + page, File: "pages-1.img", Off: off})
		if i%3 == 0 {
			profile.Touches = append(profile.Touches, prefetch.Range{File: 1, Off: off, Len: page})
		}
		off += page
	}
	p := process(&task, hotRuns(profile))
	sum := func(list []uint64) (n uint64) {
		for _, v := range list {
			n += v
		}
		return n
	}
	if p.Stored != 3000*page || sum(p.StoredIn) != p.Stored || p.Hot != 1000*page || sum(p.HotIn) != p.Hot {
		t.Errorf("stored %d (%d in cells), hot %d (%d)", p.Stored, sum(p.StoredIn), p.Hot, sum(p.HotIn))
	}
	if len(p.StoredIn) > maxCells || uint64(len(p.StoredIn))*p.Cell < p.Mapped || len(p.Areas) > maxAreas ||
		!p.Areas[0].Heap {
		t.Errorf("%d cells of %d bytes for %d, %d areas", len(p.StoredIn), p.Cell, p.Mapped, len(p.Areas))
	}
	for i, n := range p.StoredIn {
		if n > p.Cell || p.HotIn[i] > n {
			t.Errorf("cell %d has %d bytes, %d of them hot", i, n, p.HotIn[i])
		}
	}
}

// A touch that covers several runs, and runs outside of what is mapped, as hostile images have them.
func TestOddRuns(t *testing.T) {
	task := criuimg.Task{VMAs: []criuimg.VMA{{Start: 0x1000, End: 0x5000}}, Ranges: []criuimg.Range{
		{
			Start: 0x1000,
			End:   0x3000,
			File:  "pages-1.img",
		}, {Start: 0x3000, End: 0x4000, File: "pages-1.img", Off: 0x2000},
		{Start: 0x9000, End: 0xa000, File: "pages-1.img"}}}
	p := process(
		&task,
		hotRuns(
			&prefetch.Profile{Files: []string{"pages-1.img"}, Touches: []prefetch.Range{{Off: 0x1000, Len: 0x5000}}},
		),
	)
	if p.Mapped != 0x4000 || p.Stored != 0x3000 || p.Hot != 0x2000 {
		t.Errorf("mapped %#x, stored %#x, hot %#x", p.Mapped, p.Stored, p.Hot)
	}
	if empty := process(&criuimg.Task{}, nil); len(empty.StoredIn) != 0 || len(empty.Areas) != 0 {
		t.Errorf("%+v", empty)
	}
}
