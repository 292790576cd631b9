package criuimg

import (
	"cmp"
	"encoding/binary"
	"io/fs"
	"slices"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Span is a stretch of one task's memory: whole pages, where nothing else is said.
type Span struct{ Start, End uint64 }

// Inheritable is a mapping that a child may have from its parent. CRIU maps it in
// the parent, forks, and lets the child keep the pages that are equal in both.
type Inheritable struct {
	Parent, Child int // places in Tasks
	Start, End    uint64
}

// Inherited gives the mappings which CRIU restores as inherited, of those that
// may be filled on demand: it takes what begins and ends at the same place in a
// task and its parent, when both run the same program (prepare_cow_vmas in its mem.c).
func (c *Checkpoint) Inherited() (list []Inheritable) {
	place := make(map[int]int, len(c.Tasks))
	for i, t := range c.Tasks {
		place[t.PID] = i
	}
	for i, t := range c.Tasks {
		k, ok := place[t.PPID]
		if !ok || k == i || t.exe != c.Tasks[k].exe {
			continue
		}
		above := c.Tasks[k].VMAs
		for _, v := range t.VMAs {
			j, ok := slices.BinarySearchFunc(above, v.Start, func(p VMA, start uint64) int {
				return cmp.Compare(p.Start, start)
			})
			if !ok {
				continue
			}
			if p := above[j]; p.End == v.End && p.Lazy() && v.Lazy() && (p.Flags^v.Flags)&mapGrowsDown == 0 {
				list = append(list, Inheritable{Parent: k, Child: i, Start: v.Start, End: v.End})
			}
		}
	}
	return list
}

// Families tells whether a task of the images has a task as its parent: without one Inherited gives nothing.
func Families(fsys fs.FS) (bool, error) {
	tasks, err := loadTree(fsys)
	if err != nil {
		return false, err
	}
	place := make(map[int]bool, len(tasks))
	for _, t := range tasks {
		place[t.PID] = true
	}
	return slices.ContainsFunc(tasks, func(t Task) bool { return t.PPID != t.PID && place[t.PPID] }), nil
}

// DropRanges takes pages out of the task's Ranges: CRIU restores them by itself.
// The spans rise and do not touch.
func (t *Task) DropRanges(spans []Span) {
	var out []Range
	for _, r := range t.Ranges {
		for len(spans) > 0 && spans[0].End <= r.Start {
			spans = spans[1:]
		}
		for _, s := range spans {
			if s.Start >= r.End {
				break
			}
			if s.Start > r.Start {
				out = append(out, r.cut(r.Start, s.Start))
			}
			r = r.cut(min(s.End, r.End), r.End)
		}
		if r.Start < r.End {
			out = append(out, r)
		}
	}
	t.Ranges = out
}

// cut gives a part of the range.
func (r Range) cut(start, end uint64) Range {
	r.Off += int64(start - r.Start)
	r.Start, r.End = start, end
	return r
}

// PagemapName is the name of a task's page map.
func (t *Task) PagemapName() string { return pagemapName(t.PID) }

// InheritPagemap gives the page map of a task in which the pages of spans are not left to a lazy-pages server. Nothing
// else differs, and each page has its place in the pages file. It is for an image directory with a link "parent" that
// leads to the one that fsys shows. Nothing is read there, but CRIU then knows that it may meet both kinds of pages in
// one mapping: between its own reading and the registration with userfaultfd it keeps the kernel from making huge
// pages, which would put zeros where pages are still to come (maybe_disable_thp in its mem.c).
//
// The pages are not said to be in that parent: what CRIU does not map before it forks, as memory in huge pages, it
// reads at offsets that count no page of a parent.
func InheritPagemap(fsys fs.FS, pid int, spans []Span) ([]byte, error) {
	m, err := loadPagemap(fsys, ".", pid, maxRuns)
	if err != nil {
		return nil, err
	}
	head, err := proto.Marshal(&pagemap.PagemapHead{PagesId: &m.id})
	if err != nil {
		return nil, err
	}
	b := binary.LittleEndian.AppendUint32(nil, magicCommon)
	b = binary.LittleEndian.AppendUint32(b, magicPagemap)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(head)))
	b = append(b, head...)
	for _, r := range m.runs {
		if r.flags&peLazy == 0 {
			b = appendEntry(b, r.start, r.end, r.flags)
			continue
		}
		// The first that ends within the run or after it.
		i, _ := slices.BinarySearchFunc(spans, r.start+1, func(s Span, at uint64) int { return cmp.Compare(s.End, at) })
		for at := r.start; at < r.end; i++ {
			if i == len(spans) || spans[i].Start >= r.end {
				b = appendEntry(b, at, r.end, r.flags)
				break
			}
			start, end := max(spans[i].Start, at), min(spans[i].End, r.end)
			b = appendEntry(b, at, start, r.flags)
			b = appendEntry(b, start, end, r.flags&^peLazy)
			at = end
		}
	}
	return b, nil
}

// appendEntry appends an entry of a page map as CRIU has written it since 4.1.
func appendEntry(b []byte, start, end uint64, flags uint32) []byte {
	if start == end {
		return b
	}
	var e [64]byte
	p := e[:0]
	for _, f := range []struct {
		num   protowire.Number
		value uint64
	}{{fieldVaddr, start}, {fieldCompat, 0}, {fieldFlags, uint64(flags)}, {fieldPages, (end - start) / PageSize}} {
		p = protowire.AppendTag(p, f.num, protowire.VarintType)
		p = protowire.AppendVarint(p, f.value)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
	return append(b, p...)
}
