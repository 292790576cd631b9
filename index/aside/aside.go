// Package aside keeps the list of what a store cannot account for: packs and journals that are damaged, or that nothing
// refers to. They are kept on the disk as they are, and are reported until somebody repairs or removes them.
package aside

import (
	"path/filepath"
	"slices"
	"sync"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// Entry is a file in the folder of the packs, or a part of one, that the journals and the index together cannot account
// for.
type Entry struct {
	File   string `json:"file"` // in the store's folder
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
	Text   string `json:"text"` // what is wrong with it

	unread bool // a journal that could not be read: nothing else is known of it
}

// List is what is known of such files. It is safe for concurrent use. Its lock is held for a look or a note only.
type List struct {
	packs  *pack.Set
	folder string // of the packs, in the store's folder

	mu       sync.Mutex
	journals map[uint32]Entry // damaged journals, by the number of their pack
}

// New gives an empty list for these packs, which are in this folder of the store's folder.
func New(packs *pack.Set, folder string) *List {
	return &List{packs: packs, folder: folder, journals: map[uint32]Entry{}}
}

// Judge compares what was read of the journal of pack n with the mark that the index had set before. Bytes that are
// no frames, the lack of bytes, and frames that do not end at the mark are damage. end is how far the journal goes. It
// gives what of bad is damage.
//
// A journal that cannot be read at this moment is listed as that. The next who reads it judges it anew: half a frame at
// its end is then what a crash has left, and no damage.
func (l *List) Judge(n uint32, mark, end int64, bad []pack.Damage) []pack.Damage {
	a := Entry{File: filepath.Join(l.folder, pack.JournalName(n))}
	if len(bad) == 1 && bad[0].Off == end && mark <= end && l.isUnread(n) {
		if same, err := l.packs.EndsFrame(n, mark); err == nil && same {
			l.packs.EndAt(n, end)
			bad = nil
		}
	}
	switch {
	case len(bad) > 0:
		a.Offset, a.Text = bad[0].Off, "damaged: "+bad[0].Text
		for _, d := range bad {
			a.Bytes += d.Len
		}
	case mark > end:
		a.Offset, a.Bytes, a.Text = end, mark-end, "damaged: the journal has lost its end"
	default:
		same, err := l.packs.EndsFrame(n, mark)
		if err != nil {
			a.Text, a.unread = "cannot be read: "+err.Error(), true
			break
		}
		if !same {
			a.Offset, a.Text = mark, "damaged: it is not the journal that was read before"
			break
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.journals, n)
		return bad
	}
	l.Keep(n, a)
	return bad
}

// Keep notes that the journal of pack n does not tell all of the pack.
func (l *List) Keep(n uint32, a Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.journals[n] = a
}

func (l *List) isUnread(n uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.journals[n].unread
}

// Has says whether the journal of pack n is known not to tell all of the pack.
func (l *List) Has(n uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.journals[n]
	return ok
}

// All lists what the store cannot account for, by the names of the files. Damage of older journals is found by
// Verify and GC, and listed once they have been there.
func (l *List) All() ([]Entry, error) {
	var out []Entry
	l.mu.Lock()
	for _, a := range l.journals {
		out = append(out, a)
	}
	l.mu.Unlock()
	orphans, err := l.packs.Orphans()
	if err != nil {
		return nil, fault.Classify("list what is set aside", err)
	}
	for _, n := range orphans {
		if l.Has(n) {
			continue
		}
		size, err := l.packs.Size(n)
		if err != nil {
			return nil, fault.Classify("list what is set aside", err)
		}
		out = append(out, Entry{File: filepath.Join(l.folder, pack.Name(n)), Bytes: size,
			Text: "its journal is gone, and the index does not know the pack"})
	}
	lost, err := l.packs.Lost()
	if err != nil {
		return nil, fault.Classify("list what is set aside", err)
	}
	for n, why := range lost {
		out = append(out, Entry{File: filepath.Join(l.folder, pack.Name(n)), Text: "damaged: " + why})
	}
	aside, err := l.packs.AllAside()
	if err != nil {
		return nil, fault.Classify("list what is set aside", err)
	}
	for _, names := range aside {
		for _, name := range names {
			out = append(out, Entry{File: filepath.Join(l.folder, name),
				Text: "a damaged journal, kept by repair; it may tell of checkpoints that nothing else knows of"})
		}
	}
	slices.SortFunc(out, func(a, b Entry) int {
		if a.File < b.File {
			return -1
		}
		return 1
	})
	return out, nil
}
