package criuimg

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sort"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
)

// PageSize is the page size of all images this package understands. CRIU does
// not record it; the supported architectures use 4 KiB.
const PageSize = 4096

// maxAddr is the end of user space with 5-level page tables.
const maxAddr = 1 << 56

// maxParents bounds a chain of incremental dumps: longer ones are a loop. maxRuns
// bounds the runs of pages of all of one task, 32 bytes each: of 64 GiB every
// other page.
const (
	maxParents = 1024
	maxRuns    = 1 << 23
)

// VMA is one mapping of a task, page-aligned.
type VMA struct {
	Start, End uint64
	// Prot and Flags are mmap's; Status is CRIU's; Madvise has bit n set for
	// madvise advice n.
	Prot, Flags, Status uint32
	Madvise             uint64
}

// Lazy reports whether CRIU registers the VMA with userfaultfd when it
// restores with --lazy-pages.
func (v VMA) Lazy() bool {
	const want = mapPrivate | mapAnonymous
	return v.Flags&(want|mapLocked|mapHugeTLB) == want &&
		v.Status&(vmaVDSO|vmaVVAR|vmaVsyscall) == 0
}

// Range is a run of pages and where their bytes are.
type Range struct {
	Start, End uint64
	// File is the path of the pages file below the image directory, such as
	// pages-1.img or parent/pages-1.img. Off is the byte offset of Start in it.
	File string
	Off  int64
	// Parent tells that the bytes come from a directory further down the
	// chain of incremental dumps.
	Parent bool
}

// minVMA is less than the fewest bytes of a sound VMA in an image. Room is made for no more of them: empty ones,
// of two bytes, are refused one by one.
const minVMA = 16

// loadMemory fills in t's VMAs and Ranges. A task without an mm image is a
// zombie.
func loadMemory(fsys fs.FS, t *Task) error {
	name := fmt.Sprintf("mm-%d.img", t.PID)
	r, err := openImage(fsys, name, magicMM)
	if errors.Is(err, fs.ErrNotExist) {
		t.Dead = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("open memory of task %d: %w", t.PID, err)
	}
	defer r.close()
	b, err := r.bytes()
	if errors.Is(err, io.EOF) {
		return corrupt(name, "has no entry")
	}
	if err != nil {
		return err
	}
	t.VMAs = make([]VMA, 0, min(countVMAs(b), len(b)/minVMA))
	var last uint64
	t.exe, err = Mappings(name, b, func(w VMA, whole bool) error {
		if !whole {
			return corrupt(name, "vma %#x-%#x without place or flags", w.Start, w.End)
		}
		if b := w.Status &^ knownVMA; b != 0 {
			return unknownBit(name, "vma flag", b, w.Start)
		}
		if w.Status&vmaVsyscall != 0 {
			return nil // above user space
		}
		if w.Status&vmaGuard != 0 {
			// No mapping: pages of one behind which CRIU puts MADV_GUARD_INSTALL's
			// markers when all else is done. They have no contents, a fault there
			// never gets to the userfaultfd, and UFFDIO_ZEROPAGE leaves them alone.
			return nil
		}
		if w.Start < last || w.End <= w.Start || w.End > maxAddr || (w.Start|w.End)%PageSize != 0 {
			return corrupt(name, "vma %#x-%#x", w.Start, w.End)
		}
		last = w.End
		t.VMAs = append(t.VMAs, w)
		return nil
	})
	if err != nil {
		return err
	}
	if t.Args, t.Env, err = titles(name, b); err != nil {
		return err
	}
	maps, err := loadPagemaps(fsys, t.PID)
	if err != nil {
		return err
	}
	t.Ranges, err = lazyRanges(maps, t.VMAs)
	if err != nil {
		return fmt.Errorf("memory of task %d: %w", t.PID, err)
	}
	return nil
}

// run is one pagemap entry with the offset of its bytes in the pages file.
type run struct {
	start, end uint64
	off        int64
	flags      uint32
}

// pages is one directory's pagemap of a task.
type pages struct {
	name string // of the pagemap image
	id   uint32 // of the pages file
	file string // its name
	runs []run
}

// loadPagemaps reads pagemap-PID here and in all parents, the newest first.
func loadPagemaps(fsys fs.FS, pid int) ([]pages, error) {
	var maps []pages
	dir := "."
	left := maxRuns
	for len(maps) < maxParents {
		m, err := loadPagemap(fsys, dir, pid, left)
		if err != nil {
			// The task may be younger than the parent dump.
			if len(maps) > 0 && errors.Is(err, fs.ErrNotExist) {
				return maps, nil
			}
			return nil, err
		}
		maps = append(maps, m)
		left -= len(m.runs)
		needParent := false
		for _, r := range m.runs {
			needParent = needParent || r.flags&peParent != 0
		}
		if !needParent {
			return maps, nil
		}
		dir = path.Join(dir, "parent")
	}
	return nil, corrupt("parent", "more than %d directories deep", maxParents)
}

func pagemapName(pid int) string { return fmt.Sprintf("pagemap-%d.img", pid) }

func loadPagemap(fsys fs.FS, dir string, pid, limit int) (pages, error) {
	m := pages{name: path.Join(dir, pagemapName(pid))}
	r, err := openImage(fsys, m.name, magicPagemap)
	if err != nil {
		return m, fmt.Errorf("open page map: %w", err)
	}
	defer r.close()
	var head pagemap.PagemapHead
	if err := r.one(&head); err != nil {
		return m, err
	}
	if head.PagesId == nil {
		return m, corrupt(m.name, "does not name its pages")
	}
	m.id = head.GetPagesId()
	m.file = path.Join(dir, fmt.Sprintf("pages-%d.img", m.id))
	var last uint64
	var off int64
	for {
		b, err := r.bytes()
		if errors.Is(err, io.EOF) {
			return m, nil
		}
		var e entry
		if err == nil {
			e, err = decodeEntry(m.name, b)
		}
		if err != nil {
			return m, err
		}
		start, n, flags := e.vaddr, e.pages, e.flags
		if b := flags &^ knownPE; b != 0 {
			return m, unknownBit(m.name, "page run flag", b, start)
		}
		if start < last || start%PageSize != 0 || start > maxAddr || n > (maxAddr-start)/PageSize {
			return m, corrupt(m.name, "%d pages at %#x", n, start)
		}
		end := start + n*PageSize
		last = end
		if len(m.runs) >= limit {
			return m, corrupt(m.name, "more than %d runs of pages, those of its parents included", maxRuns)
		}
		if n > 0 {
			m.runs = append(m.runs, run{start, end, off, flags})
		}
		if flags&pePresent != 0 {
			if off > 1<<62-int64(end-start) {
				return m, corrupt(m.name, "more pages than a file can hold")
			}
			off += int64(end - start)
		}
	}
}

// lazyRanges cuts the lazy runs of maps[0] at VMA boundaries and finds the
// file that holds each piece.
func lazyRanges(maps []pages, vmas []VMA) ([]Range, error) {
	var out []Range
	for _, r := range maps[0].runs {
		if r.flags&peLazy == 0 {
			continue
		}
		start := r.start
		for start < r.end {
			i := sort.Search(len(vmas), func(i int) bool { return vmas[i].End > start })
			if i == len(vmas) || vmas[i].Start > start {
				return nil, corrupt(maps[0].name, "lazy page at %#x is in no vma", start)
			}
			if vmas[i].Status&vmaShadowStack != 0 {
				// CRIU copies a shadow stack before it is registered, when nobody
				// has filled what it is copied from.
				return nil, fmt.Errorf("%s: page %#x is of a shadow stack, which criu restore --lazy-pages "+
					"would leave empty (hint: criu restore from a mount reads all memory by itself)", maps[0].name,
					start)
			}
			end := min(r.end, vmas[i].End)
			var err error
			if out, err = locate(out, maps, start, end); err != nil {
				return nil, err
			}
			start = end
		}
	}
	return out, nil
}

// locate appends where [start, end) is stored, following parents.
func locate(out []Range, maps []pages, start, end uint64) ([]Range, error) {
	depth, limit := 0, end
	for start < end {
		m := &maps[depth]
		i := sort.Search(len(m.runs), func(i int) bool { return m.runs[i].end > start })
		if i == len(m.runs) || m.runs[i].start > start {
			return nil, corrupt(m.name, "page %#x is missing", start)
		}
		r := m.runs[i]
		limit = min(limit, r.end)
		switch {
		case r.flags&pePresent != 0:
			out = append(out, Range{Start: start, End: limit, File: m.file,
				Off: r.off + int64(start-r.start), Parent: depth > 0})
			start, depth, limit = limit, 0, end
		case r.flags&peParent != 0 && depth+1 < len(maps):
			depth++
		case r.flags&peParent != 0:
			return nil, corrupt(m.name, "page %#x should be in a parent that lacks it", start)
		default:
			return nil, fmt.Errorf("page %#x was left in the source process by criu dump --lazy-pages; dump without it",
				start)
		}
	}
	return out, nil
}
