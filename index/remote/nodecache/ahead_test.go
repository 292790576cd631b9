package nodecache

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// heard gathers what Bring says has come.
type heard struct {
	mu    sync.Mutex
	times []int
}

func (h *heard) came(numbers []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range numbers {
		h.times[n]++
	}
}

func (h *heard) all() bool { return !slices.ContainsFunc(h.times, func(n int) bool { return n != 1 }) }

// wanted wants slots of an object.
func wanted(o *Object, locs []pack.Chunk) (list []Wanted) {
	for _, x := range locs {
		list = append(list, Wanted{o, x})
	}
	return list
}

// counting is a disk that counts what is asked of it.
func counting(opens, questions *atomic.Int64) storage.Storage {
	return &storage.Faulty{Storage: storage.Disk{}, Rule: func(c storage.Call) storage.Fault {
		switch c.Op {
		case storage.OpOpen:
			opens.Add(1)
		case storage.OpAllocated:
			questions.Add(1)
		}
		return storage.Fault{}
	}}
}

// bring brings slots of several objects, and asserts that all are said to have come, once.
func bring(t *testing.T, ctx context.Context, c *Cache, list []Wanted) {
	t.Helper()
	h := &heard{times: make([]int, len(list))}
	c.Bring(ctx, list, h.came)
	if !h.all() {
		t.Errorf("slots were said to have come %v times", h.times)
	}
}

// TestBring brings two objects of which some is there already: with few requests, which lie side by side, and nothing
// twice. What has come is read without another one, and brought again by none.
func TestBring(t *testing.T) {
	src := newFar()
	c := cacheIn(t, filepath.Join(t.TempDir(), "cache"), src, 1<<30)
	var list []Wanted
	var total int64
	for i := range 2 {
		o, locs := src.put(uint64(40+i), many(300, 100_000)...)
		read(t, c, src, o, locs[10:14]) // a small gap
		read(t, c, src, o, locs[100:150])
		for _, x := range locs {
			list = append(list, Wanted{&o, x})
		}
		total += o.Size
	}
	before := src.asked()
	bring(t, t.Context(), c, list)
	n := src.asked() - before
	if most := int(total/AheadRequest) + 8; n > most {
		t.Errorf("%d requests for %d bytes", n, total)
	}
	if f := c.Counts.Fetched.Load(); f > total+total/gapShare {
		t.Errorf("%d bytes fetched of %d", f, total)
	}
	before = src.asked()
	for _, o := range []*Object{list[0].Object, list[300].Object} {
		for i, w := range list {
			if w.Object == o && i%7 == 0 {
				read(t, c, src, *o, []pack.Chunk{w.Chunk})
			}
		}
	}
	bring(t, t.Context(), c, list)
	if n := src.asked() - before; n != 0 {
		t.Errorf("%d requests for what had come", n)
	}
}

// TestBringInVain brings what cannot be fetched, what cannot be kept, and what nobody waits for any more: all of it is
// left to its readers, and the bucket is not read for nothing.
func TestBringInVain(t *testing.T) {
	src := newFar()
	o, locs := src.put(50, many(300, 100_000)...)
	list := wanted(&o, locs)
	none := cacheIn(t, filepath.Join(t.TempDir(), "cache"), src, 0)
	bring(t, t.Context(), none, list)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	c := cacheIn(t, filepath.Join(t.TempDir(), "cache"), src, 1<<30)
	bring(t, ended, c, list)
	if n := src.asked(); n > 0 {
		t.Errorf("%d requests", n)
	}
	src.fail = errors.New("no way there")
	bring(t, t.Context(), c, list)
	src.fail = nil
	read(t, c, src, o, locs)

	broken := &storage.Faulty{Storage: storage.Disk{}, Rule: func(c storage.Call) storage.Fault {
		if c.Op == storage.OpWrite {
			return storage.Fault{Kind: storage.Fail}
		}
		return storage.Fault{}
	}}
	g := newGate(src, 3)
	full, err := Open(Options{Dir: filepath.Join(t.TempDir(), "cache"), Limit: 1 << 30, Storage: broken, Source: src,
		Ahead: g, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	before := full.Counts.Fetched.Load()
	long, more := src.put(51, many(600, 100_000)...)
	list = wanted(&long, more)
	bring(t, t.Context(), full, list)
	if f := full.Counts.Fetched.Load() - before; f > 3*AheadRequest {
		t.Errorf("%d bytes fetched though nothing can be kept", f)
	}
	read(t, full, src, long, more[:10])
}

// gate lets so many ranges be under way at once.
type gate struct {
	*far
	free chan struct{}

	mu          sync.Mutex
	under, most int
}

func newGate(src *far, ranges int) *gate {
	g := &gate{far: src, free: make(chan struct{}, ranges)}
	for range ranges {
		g.free <- struct{}{}
	}
	return g
}

func (g *gate) Begin(ctx context.Context) (func(int64), error) {
	select {
	case <-g.free:
		return func(int64) { g.free <- struct{}{} }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (g *gate) ReadAhead(ctx context.Context, name object.Name, p []byte, off int64) error {
	g.mu.Lock()
	g.under++
	g.most = max(g.most, g.under)
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		g.under--
		g.mu.Unlock()
	}()
	return g.far.ReadRange(ctx, name, p, off)
}

// TestBringBesideReaders brings by a way of its own, no more at once than that allows, while others read: nothing is
// fetched twice.
func TestBringBesideReaders(t *testing.T) {
	src := newFar()
	g := newGate(src, 3)
	c, err := Open(Options{Dir: filepath.Join(t.TempDir(), "cache"), Limit: 1 << 30, Storage: storage.Disk{},
		Source: src, Ahead: g, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	o, locs := src.put(60, many(300, 100_000)...)
	list := wanted(&o, locs)
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := w * 50; i < len(locs); i += 97 {
				read(t, c, src, o, locs[i:min(i+3, len(locs))])
			}
		})
	}
	bring(t, t.Context(), c, list)
	all.Wait()
	read(t, c, src, o, locs)
	if f := c.Counts.Fetched.Load(); f > o.Size+o.Size/gapShare+gapBytes {
		t.Errorf("%d bytes fetched of %d", f, o.Size)
	}
	if g.most == 0 || g.most > 3 {
		t.Errorf("%d ranges were under way at once", g.most)
	}
}

// TestBringWhatIsHere brings what was brought before: the bucket is not asked, nor opened for it, and the file system
// a few times for each object. What is said to be here is: of a list with holes and in no order too.
func TestBringWhatIsHere(t *testing.T) {
	src := newFar()
	var opens, questions atomic.Int64
	counted := counting(&opens, &questions)
	g := newGate(src, 3)
	c, err := Open(Options{Dir: filepath.Join(t.TempDir(), "cache"), Limit: 1 << 30, Storage: counted, Source: src,
		Ahead: g, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	o, locs := src.put(70, many(300, 100_000)...)
	list := wanted(&o, locs)
	bring(t, t.Context(), c, list)
	for range cap(g.free) { // whoever asks for the bucket waits
		<-g.free
	}
	questions.Store(0)
	bring(t, t.Context(), c, list)
	if n := questions.Load(); n > 3 {
		t.Errorf("%d questions for %d slots that are here", n, len(list))
	}

	part := cacheIn(t, filepath.Join(t.TempDir(), "cache"), src, 1<<30)
	read(t, part, src, o, locs[100:200])
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	b := bringing{c: part, list: list, here: make([]bool, len(list))}
	b.look()
	for i, w := range list {
		n := slices.Index(locs, w.Chunk)
		if in := n >= 100 && n < 200; b.here[i] != in {
			t.Errorf("slot %d is said to be here: %v", n, b.here[i])
		}
	}
}

// TestBringInAnyOrder brings what is here in no order: its file is opened once.
func TestBringInAnyOrder(t *testing.T) {
	src := newFar()
	var opens, questions atomic.Int64
	counted := counting(&opens, &questions)
	c, err := Open(Options{Dir: filepath.Join(t.TempDir(), "cache"), Limit: 1 << 30, Storage: counted, Source: src,
		Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	o, locs := src.put(70, many(300, 100_000)...)
	list := wanted(&o, locs)
	bring(t, t.Context(), c, list)
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	opens.Store(0)
	questions.Store(0)
	b := bringing{c: c, list: list, here: make([]bool, len(list))}
	if n := len(b.look()); n != len(list) || opens.Load() != 1 || questions.Load() > 3 {
		t.Errorf("%d of %d slots are here, by %d questions of a file that was opened %d times", n, len(list),
			questions.Load(), opens.Load())
	}

	half := cacheIn(t, filepath.Join(t.TempDir(), "cache"), src, 1<<30)
	half.o.Storage = counted
	for i := 0; i < len(locs); i += 2 {
		read(t, half, src, o, locs[i:i+1])
	}
	questions.Store(0)
	b = bringing{c: half, list: list, here: make([]bool, len(list))}
	if n := len(b.look()); n != len(list)/2 || int(questions.Load()) > len(list) {
		t.Errorf("%d of %d slots are here, by %d questions", n, len(list), questions.Load())
	}
}

// TestBringOverlapping looks for a slot that a damaged list lets reach beyond the next ones, which are here: it is not.
func TestBringOverlapping(t *testing.T) {
	src := newFar()
	c := cacheIn(t, filepath.Join(t.TempDir(), "cache"), src, 1<<30)
	o, locs := src.put(70, many(300, 100_000)...)
	read(t, c, src, o, locs[:10])
	long := locs[5]
	long.Loc.Stored = 2_000_000
	list := []Wanted{{&o, locs[4]}, {&o, long}, {&o, locs[6]}, {&o, locs[6]}, {&o, locs[7]}}
	b := bringing{c: c, list: list, here: make([]bool, len(list))}
	b.look()
	if want := []bool{true, false, true, true, true}; !slices.Equal(b.here, want) {
		t.Errorf("said to be here: %v, want %v", b.here, want)
	}
}
