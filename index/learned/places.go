// Package learned keeps what other machines have taken to the bucket: which chunk lies where in which pack object.
// Uploads look there, so that nothing is sent twice. Nobody restores by it.
//
// It is a memory, no truth. A bucket has a great many chunks of which a machine needs few, so they are not in the
// store's index: they lie in files of their own, sorted by id, which are read a block at a time and never mapped. What
// is told is gathered (gatherChunks), written as one more file, and files are merged so that each has more than twice
// the chunks of all later ones together: a look-up reads a handful of blocks, and a chunk is written again a few times
// at most.
//
// Nothing is synced. A file whose sums do not fit is removed, and what was in it is sent again; so the folder may be
// deleted whenever no store has it open. The form of a file is told in file.go.
package learned

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// Options of Places. All are needed.
type Options struct {
	Sealed  bool   // locations are sealed: the bucket is encrypted
	Dir     string // is made when something is to be kept
	Floor   int64  // bytes of the file system that are left free
	Storage storage.Storage
	Logger  *slog.Logger
}

const (
	// gatherChunks is how many chunks are gathered in memory, at 60 bytes each.
	gatherChunks = 1 << 19
	// mostFiles is how many files there are before they are merged, whatever else is to come.
	mostFiles = 32
	suffix    = ".places"
)

// Places is where chunks of others lie in the bucket. It is safe for concurrent use.
type Places struct {
	o      Options
	gather int // gatherChunks; tests take less

	mu     sync.Mutex
	loaded bool
	files  []*file // those with most chunks first
	last   uint64  // number of a file given last
	names  map[object.Name]bool
	fresh  gathered
}

// gathered is what is in no file yet.
type gathered struct {
	packs   []object.PackRef
	numbers map[object.Name]uint32 // in packs, from 1 on
	chunks  []pack.Chunk           // Loc.Pack is such a number
	sorted  bool
}

func byID(a, b pack.Chunk) int {
	return cmp.Or(bytes.Compare(a.ID[:], b.ID[:]), cmp.Compare(a.Loc.Pack, b.Loc.Pack),
		cmp.Compare(a.Loc.Page, b.Loc.Page))
}

func (g *gathered) number(p object.PackRef) uint32 {
	n, ok := g.numbers[p.Name]
	if !ok {
		if g.numbers == nil {
			g.numbers = map[object.Name]uint32{}
		}
		g.packs = append(g.packs, p)
		n = uint32(len(g.packs))
		g.numbers[p.Name] = n
	}
	return n
}

// New gives the places that a folder holds. It is read when it is needed first.
func New(o Options) *Places {
	return &Places{o: o, gather: gatherChunks, names: map[object.Name]bool{}}
}

// Close closes the files. What was not kept is forgotten.
func (p *Places) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, f := range p.files {
		errs = append(errs, f.Close())
	}
	p.files, p.loaded = nil, true
	return errors.Join(errs...)
}

// load opens the files of the folder. Call with mu held.
func (p *Places) load() {
	if p.loaded {
		return
	}
	p.loaded = true
	names, err := p.o.Storage.List(p.o.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.o.Logger.Warn("what others have in the bucket cannot be looked up, and is sent again", "err", err)
	}
	for _, name := range names {
		path := filepath.Join(p.o.Dir, name)
		digits, ok := strings.CutSuffix(name, suffix)
		n, err := strconv.ParseUint(digits, 10, 48)
		if !ok || err != nil { // was being written
			_ = p.o.Storage.Remove(path)
			continue
		}
		p.last = max(p.last, n)
		f, err := openFile(p.o.Storage, path)
		if err != nil {
			p.unknown(path, err)
			continue
		}
		p.files = append(p.files, f)
	}
	p.arrange()
}

// unknown removes a file that is not as it was written. One that could not be read stays for the next process.
func (p *Places) unknown(path string, why error) {
	p.o.Logger.Warn("some of what others have in the bucket is not known any more, and may be sent again", "file", path,
		"err", why)
	if errors.Is(why, errForm) {
		_ = p.o.Storage.Remove(path)
	}
}

// arrange puts the files in order, those with most chunks first, and finds out anew which packs are known.
func (p *Places) arrange() {
	slices.SortStableFunc(p.files, func(a, b *file) int { return cmp.Compare(b.records, a.records) })
	clear(p.names)
	for _, f := range p.files {
		for _, ref := range f.packs {
			p.names[ref.Name] = true
		}
	}
	for _, ref := range p.fresh.packs {
		p.names[ref.Name] = true
	}
}

// Knows says whether anything was learned of a pack object.
func (p *Places) Knows(name object.Name) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.load()
	return p.names[name]
}

// Add notes where chunks lie: packs[i] is what locations call pack i+1. It is kept by Keep.
func (p *Places) Add(packs []object.PackRef, list []pack.Chunk) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.load()
	for _, c := range list {
		if n := c.Loc.Pack; n == 0 || int(n) > len(packs) || c.Loc.Offset()+c.Loc.Slot() > packs[n-1].Size {
			return fmt.Errorf("%w: a chunk outside of its pack", pack.ErrCorrupt)
		}
		ref := packs[c.Loc.Pack-1]
		c.Loc.Pack = p.fresh.number(ref)
		p.names[ref.Name] = true
		p.fresh.chunks, p.fresh.sorted = append(p.fresh.chunks, c), false
		if len(p.fresh.chunks) >= p.gather {
			p.spill()
		}
	}
	return nil
}

// Keep writes what was added. Where that fails it is forgotten.
func (p *Places) Keep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.load()
	p.spill()
	p.fresh = gathered{}
	rest := 0
	for _, f := range p.files {
		rest += f.records
	}
	for i, f := range p.files {
		if rest -= f.records; f.records <= 2*rest {
			p.merge(p.files[i:], func(object.Name) bool { return true })
			return
		}
	}
}

// spill writes what was gathered to a file. Call with mu held.
func (p *Places) spill() {
	if len(p.fresh.chunks) == 0 {
		return
	}
	if len(p.files) >= mostFiles {
		p.merge(p.files, func(object.Name) bool { return true })
	}
	p.sort()
	f, err := p.write(p.fresh.packs, []source{{next: p.fresh.each(), number: identity(len(p.fresh.packs))}})
	p.fresh = gathered{chunks: p.fresh.chunks[:0]}
	if err != nil {
		p.o.Logger.Warn("what others have in the bucket cannot be kept, and may be sent again", "err", err)
	} else {
		p.files = append(p.files, f)
	}
	p.arrange()
}

func (p *Places) sort() {
	if !p.fresh.sorted {
		slices.SortFunc(p.fresh.chunks, byID)
		p.fresh.sorted = true
	}
}

func (g *gathered) each() func() (pack.Chunk, bool, error) {
	i := 0
	return func() (pack.Chunk, bool, error) {
		if i == len(g.chunks) {
			return pack.Chunk{}, false, nil
		}
		i++
		return g.chunks[i-1], true, nil
	}
}

// Find gives a place of a chunk.
func (p *Places) Find(id chunk.ID) (ref object.PackRef, loc pack.Loc, ok bool) {
	return p.FindIn(id, nil)
}

// FindIn gives a place of a chunk in a pack that may be used; nil: all may.
func (p *Places) FindIn(id chunk.ID, may func(object.Name) bool) (ref object.PackRef, loc pack.Loc, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.load()
	p.sort()
	i, _ := slices.BinarySearchFunc(p.fresh.chunks, id, func(c pack.Chunk, id chunk.ID) int {
		return bytes.Compare(c.ID[:], id[:])
	})
	for ; i < len(p.fresh.chunks) && p.fresh.chunks[i].ID == id; i++ {
		c := p.fresh.chunks[i]
		if ref := p.fresh.packs[c.Loc.Pack-1]; may == nil || may(ref.Name) {
			return ref, c.Loc, true
		}
	}
	for i := len(p.files) - 1; i >= 0; i-- { // later ones as a rule first
		f := p.files[i]
		c, ok, err := f.find(id, may)
		if err != nil {
			p.remove([]*file{f}, err)
			continue
		}
		if ok {
			return f.packs[c.Loc.Pack-1], c.Loc, true
		}
	}
	return object.PackRef{}, pack.Loc{}, false
}

// remove closes and removes files, unless they could not be read. why says what is wrong with them; nil: others stand
// for them. Call with mu held.
func (p *Places) remove(files []*file, why error) {
	for _, f := range slices.Clone(files) {
		f.Close()
		if why != nil {
			p.unknown(f.Name(), why)
		} else {
			_ = p.o.Storage.Remove(f.Name()) // what is left is no more than told twice
		}
		p.files = slices.DeleteFunc(p.files, func(x *file) bool { return x == f })
	}
	p.arrange()
}

// rewriteShare: a file is written anew when one of so many of its packs stands no more.
const rewriteShare = 8

// Forget forgets packs that do not stand any more, where they are many, and gives how many.
func (p *Places) Forget(stands func(object.Name) bool) (forgotten int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.load()
	p.spill()
	before := len(p.names)
	for _, f := range slices.Clone(p.files) {
		gone := 0
		for _, ref := range f.packs {
			if !stands(ref.Name) {
				gone++
			}
		}
		if gone*rewriteShare > len(f.packs) {
			p.merge([]*file{f}, stands)
		}
	}
	return before - len(p.names)
}
