package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// memDir is where the storage in memory has the store, wherever its index lies.
const memDir = "/store"

// world is a store with all that belongs to it. Steps of a par, and a step beside another, run at once; mu guards
// what they share.
type world struct {
	p   *program
	tmp string // for folders of indexes
	dir string // the store's folder: only its index is there
	mem *storage.Mem
	s   *index.Store
	m   *state
	n   *counts

	asked   atomic.Int64 // calls of cuts
	syncing sync.Mutex   // held while a sync of the index is noted; before copies
	copies  sync.RWMutex // read: the index is being copied; write: copies are dropped

	mu     sync.Mutex // taken after the state's
	next   int        // number of the next folder
	drafts map[string]*draft
	ended  []*draft // in whose place drafts has others: steps that run at once may still use them
	older  []string // copies of the index: at its last sync, and later
	base   string   // that of them from its last sync; "" where it has not been synced since it was opened
	synced int      // syncs of the index so far
	inode  uint64   // of the folder that older and base are of
	images []*image
	hidden bool     // a journal was taken away, and written anew: what nobody had committed to its pack is unknown
	later  []func() // what waits until the steps that run at once have ended
	watch  watch
}

// errUnusable ends a program whose store can't be opened because its disk lied.
var errUnusable = errors.New("the disk lied, and the store can't be opened")

// counts are what a run has done.
type counts struct{ programs, steps, crashes, faults, opens atomic.Int64 }

// watch is what is done at the storage calls of the present step.
type watch struct {
	op      *op
	calls   int
	draw    bool      // crashes and faults are drawn
	faults  int       // injected in this step
	ever    int       // injected since the store was opened
	besides []*beside // those that have not begun
	changed []string  // calls that changed files, when they are to be listed
	list    bool
}

// image is a moment at which a crash may come.
type image struct {
	files *storage.Image
	index []string // copies of the index that may be found, the present one last
	base  string   // copy of the index as of its last sync
	m     *state
	call  storage.Call
	n     int // of the call within its step
	draw  uint64
}

func newWorld(p *program, tmp string, n *counts) (*world, error) {
	w := &world{p: p, tmp: tmp, n: n, mem: storage.NewMem(memDir), m: newState(), drafts: map[string]*draft{}}
	c := index.Config{
		Format: index.Format, ID: "000102030405060708090a0b0c0d0e0f", Created: time.Unix(0, 0).UTC(),
		Compression: index.Compression(p.Compression),
		Chunk:       chunk.Params{Min: 4096, Avg: 8192, Max: 16384}, PackSize: p.PackSize,
	}
	b, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	w.dir = w.folder()
	return w, errors.Join(storage.WriteFile(w.mem, memDir+"/config.json", b), w.mem.Mkdir(memDir+"/packs"),
		w.mem.SyncDir(memDir), os.MkdirAll(filepath.Join(w.dir, "index"), 0o700))
}

// folder gives the name of a new folder. Call with mu held, or before steps run.
func (w *world) folder() string {
	w.next++
	return filepath.Join(w.tmp, fmt.Sprint(w.next))
}

// recut are the files that are cut anew when they are sealed.
var recut = []string{"f1", "amdgpu-pages-1.img"}

// cuts names every fifth page of these files, but not each time that it is asked: a seal that failed may have cut them
// otherwise.
func (w *world) cuts(view fs.FS) (map[string][]int64, error) {
	out := map[string][]int64{}
	if w.asked.Add(1)%3 == 0 {
		return out, nil
	}
	for _, name := range recut {
		if info, err := fs.Stat(view, name); err == nil && info.Mode().IsRegular() {
			for off := chunk.HeaderLen(name) + 3*4096; off < info.Size(); off += 5 * 4096 {
				out[name] = append(out[name], off)
			}
		}
	}
	return out, nil
}

func (w *world) options() index.Options {
	return index.Options{
		Storage:   at{&storage.Faulty{Storage: w.mem, Rule: w.rule}, w.dir},
		CacheSize: 1 << 20, Workers: 1, FreeFloor: 1, Cuts: w.cuts,
		Logger: slog.New(slog.DiscardHandler),
		Tuning: index.Tuning{
			CommitEvery: w.p.CommitEvery, ShrinkJournal: w.p.Shrink, IngestWorkers: 1, IndexMemory: 1 << 20,
			IndexSynced: w.indexSynced, IndexWrote: w.indexWrote,
		},
	}
}

// open opens the store, rebuilding its index if that is gone.
func (w *world) open(indexGone bool) error {
	w.n.opens.Add(1)
	ctx := context.Background()
	s, err := index.Open(ctx, w.dir, w.options())
	if err != nil && indexGone && index.ClassOf(err) == index.Corrupt {
		if err := w.repair(); err != nil {
			return err
		}
		s, err = index.Open(ctx, w.dir, w.options())
	}
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	w.s = s
	w.watch.ever = 0
	return nil
}

func (w *world) repair() error {
	res, err := index.Repair(context.Background(), w.dir, w.options())
	w.mu.Lock()
	w.older, w.base = nil, "" // it has put a new index in place of the old one, durably
	w.mu.Unlock()
	if err != nil {
		return fmt.Errorf("repair: %w", err)
	}
	for _, what := range res.Lost {
		if w.p.Mode != liars && !(w.hidden && strings.HasPrefix(what, "pack ")) {
			return fmt.Errorf("repair has lost %v", res.Lost)
		}
	}
	return nil
}

// closeEnded closes the files of drafts that ended while others took their names.
func (w *world) closeEnded() {
	for _, d := range w.ended {
		d.closeFiles()
	}
	w.ended = nil
}

// close closes the store; drafts are lost.
func (w *world) close() error {
	if w.s == nil {
		return nil
	}
	w.closeEnded()
	for _, d := range w.drafts {
		d.closeFiles()
	}
	drafts := len(w.drafts) > 0
	w.drafts = map[string]*draft{}
	err := w.s.Close()
	w.s = nil
	w.mem.Forget() // nobody can know of a sync that failed before
	if err != nil && (!drafts || index.ClassOf(err) != index.InUse) {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// rule sees every storage call.
func (w *world) rule(c storage.Call) storage.Fault {
	w.mu.Lock()
	o := w.watch.op
	n := w.watch.calls
	w.watch.calls++
	if sync := c.Op == storage.OpSync || c.Op == storage.OpSyncDir; w.watch.list && c.Op.Changes() && !sync {
		w.watch.changed = append(w.watch.changed, fmt.Sprintf("%s %s", c.Op, c.Name))
	}
	begin := w.watch.due(c)
	draw := w.watch.draw && o != nil && !o.NoFaults
	w.mu.Unlock()
	for _, b := range begin {
		w.begin(b)
	}
	if !draw {
		return storage.Fault{}
	}
	luck := mix(w.p.Seed, uint64(o.ID), uint64(n))
	switch w.p.Mode {
	case crashes:
		// In some programs most calls are followed by a look, others get further instead.
		if often := []uint64{3, 12, 50}[w.p.Seed%3]; c.Op.Changes() && luck%often == 0 {
			w.capture(c, n, luck>>8)
		}
		return storage.Fault{}
	}
	return w.fault(c, luck)
}

// fault draws what happens to a call.
func (w *world) fault(c storage.Call, luck uint64) storage.Fault {
	often := uint64(40)
	if c.Op.Changes() {
		often = 12
	}
	if luck%often != 0 {
		return storage.Fault{}
	}
	luck >>= 8
	f := storage.Fault{Seed: mix(luck, 1)}
	kinds := []storage.FaultKind{storage.Fail, storage.Fail, storage.Late, storage.Short}
	if c.Op == storage.OpSync && !strings.Contains(*without, "drop") {
		kinds = []storage.FaultKind{storage.Fail, storage.Drop, storage.Drop}
	}
	if w.p.Mode == liars {
		kinds = []storage.FaultKind{storage.Silent}
		if c.Op == storage.OpRead {
			kinds = []storage.FaultKind{storage.Rot}
		}
	}
	f.Kind = kinds[luck%uint64(len(kinds))]
	if luck>>8%3 == 0 {
		f.Err = errNoSpace
	}
	w.mu.Lock()
	w.watch.faults++
	w.watch.ever++
	for _, d := range w.drafts {
		d.hurt = true
	}
	w.mu.Unlock()
	w.n.faults.Add(1)
	return f
}

// at is a storage in which the store's folder has another name.
type at struct {
	storage.Storage
	dir string
}

func (a at) name(name string) string {
	rel, err := filepath.Rel(a.dir, name)
	if err != nil {
		panic(err)
	}
	return filepath.Join(memDir, rel)
}

func (a at) Open(name string, how storage.How) (storage.File, error) {
	return a.Storage.Open(a.name(name), how)
}
func (a at) Mkdir(name string) error                     { return a.Storage.Mkdir(a.name(name)) }
func (a at) Rename(from, to string) error                { return a.Storage.Rename(a.name(from), a.name(to)) }
func (a at) Remove(name string) error                    { return a.Storage.Remove(a.name(name)) }
func (a at) List(dir string) ([]string, error)           { return a.Storage.List(a.name(dir)) }
func (a at) Stat(name string) (storage.Info, error)      { return a.Storage.Stat(a.name(name)) }
func (a at) SyncDir(dir string) error                    { return a.Storage.SyncDir(a.name(dir)) }
func (a at) Free(dir string) (int64, error)              { return a.Storage.Free(a.name(dir)) }
func (a at) Lock(name, holder string) (io.Closer, error) { return a.Storage.Lock(a.name(name), holder) }
