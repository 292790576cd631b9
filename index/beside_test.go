package index

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/reading"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

var besideFlag = flag.Duration("beside", 4*time.Second,
	"how long TestEverythingBesideEverything works; -beside.seed repeats its choices")
var besideSeed = flag.Uint64("beside.seed", 0, "seed of TestEverythingBesideEverything; 0 takes one by the clock")

// TestEverythingBesideEverything lets all that a store does run beside all else, on few contents, so that most of it is
// found stored, given back and stored again. Every checkpoint is held against what was acknowledged: it is there byte
// for byte when it was sealed and not removed, and gone when it was removed; a tag is on one at most.
func TestEverythingBesideEverything(t *testing.T) {
	t.Parallel()
	seed := *besideSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-beside.seed=%d", seed)
	o := testOptions(t)
	o.Logger = nil
	s := newTestStore(t, o)
	b := &besideModel{t: t, sealed: map[string]map[string][]byte{}, gone: map[string]bool{}}
	for i := range 12 {
		b.pieces = append(b.pieces, memory(uint64(i), 300<<10+i*70<<10))
	}
	until := time.Now().Add(*besideFlag)
	for round := 0; time.Now().Before(until); round++ {
		var workers sync.WaitGroup
		end := time.Now().Add(min(time.Second, time.Until(until)))
		for w := range 8 {
			r := rand.New(rand.NewPCG(seed, uint64(round)<<8|uint64(w)))
			workers.Go(func() {
				for n := 0; time.Now().Before(end) && !t.Failed(); n++ {
					b.step(s, r, fmt.Sprintf("c%d-%d-%d", round, w, n), w)
				}
			})
		}
		workers.Wait()
		b.check(s)
		switch {
		case t.Failed():
			t.Fatalf("-beside.seed=%d", seed)
		case round%3 == 2:
			s = rebuilt(t, s)
			b.check(s)
		default:
			s = reopen(t, s)
		}
	}
	t.Logf("%d checkpoints are left, %d were removed", len(b.sealed), len(b.gone))
}

// besideModel is what the store is to hold.
type besideModel struct {
	t      *testing.T
	pieces [][]byte

	mu     sync.Mutex
	sealed map[string]map[string][]byte
	gone   map[string]bool
}

func (b *besideModel) fail(op string, err error, allowed ...fault.Class) {
	if err != nil && !slices.Contains(allowed, fault.ClassOf(err)) {
		b.t.Errorf("%s: %v", op, err)
	}
}

func (b *besideModel) pick(r *rand.Rand) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	names := slices.Sorted(maps.Keys(b.sealed))
	if len(names) == 0 {
		return "none"
	}
	return names[r.IntN(len(names))]
}

// step does one thing. Two of the workers do the upkeep, so that the others meet it.
func (b *besideModel) step(s *Store, r *rand.Rand, name string, worker int) {
	ctx := context.Background()
	if worker == 0 {
		_, err := s.GC(ctx, upkeep.GCOptions{DryRun: r.IntN(4) == 0})
		b.fail("gc", err)
		return
	}
	if worker == 1 {
		switch r.IntN(5) {
		case 4:
			_, err := s.Optimize(ctx, upkeep.OptimizeOptions{Rate: 1 << 30})
			b.fail("optimize", err)
		case 0:
			v, err := s.Verify(ctx, upkeep.VerifyOptions{})
			if b.fail("verify", err); len(v.Problems) > 0 {
				b.t.Errorf("verify: %+v", v.Problems[:min(3, len(v.Problems))])
			}
		case 1:
			b.fail("commit", s.chunks.Commit(nil))
		case 2:
			b.fail("roll", s.chunks.Packs.Roll())
		default:
			// As if a reader had met it: it is stored anew.
			b.fail("damage", b.damage(s, r))
		}
		return
	}
	switch k := r.IntN(20); {
	case k < 8:
		b.write(s, r, name)
	case k < 11:
		b.remove(s, b.pick(r))
	case k < 13:
		b.read(s, b.pick(r))
	case k < 16:
		err := s.Tag(ctx, b.pick(r), []string{fmt.Sprint("tag", r.IntN(3))}, nil)
		b.fail("tag", err, fault.NotFound)
	case k < 18:
		p := bytes.Repeat([]byte("p"), r.IntN(200<<10))
		b.fail("profile", s.SetProfile(b.pick(r), p), fault.NotFound)
	case k < 19:
		b.fail("hot set", s.SetHotSet(b.pick(r), 4,
			func(w io.Writer) error { _, err := io.WriteString(w, "hot"); return err }), fault.NotFound)
	default:
		_, err := s.List(ctx)
		b.fail("list", err)
	}
}

// damage has some chunk stored anew when it comes by again, though it is whole.
func (b *besideModel) damage(s *Store, r *rand.Rand) error {
	c, err := s.Checkpoint(b.pick(r))
	if err != nil {
		return nil
	}
	f, err := c.Open("f0")
	if err != nil {
		return nil
	}
	defer f.Close()
	return f.Extents(0, f.Size(), func(x reading.Extent) bool {
		if loc, err := s.chunks.Locate(x.ID); !x.Zero && err == nil && r.IntN(3) == 0 {
			s.chunks.SetDamaged(x.ID, loc)
		}
		return true
	})
}

// write makes a checkpoint by several writers, and seals it or gives it up while they write.
func (b *besideModel) write(s *Store, r *rand.Rand, name string) {
	ctx := context.Background()
	d, err := s.Create(ctx, name, drafts.CreateOptions{Tags: []string{fmt.Sprint("tag", r.IntN(3))}})
	if err != nil {
		b.t.Errorf("create: %v", err)
		return
	}
	if parent := b.pick(r); r.IntN(4) == 0 {
		b.fail("parent", d.SetParent(parent), fault.NotFound)
	}
	files := make([][]byte, 1+r.IntN(3)) // what was acknowledged; each belongs to its writer
	var writers sync.WaitGroup
	for i := range files {
		f, err := d.Create(fmt.Sprint("f", i), 0o600)
		if err != nil {
			b.t.Errorf("create: %v", err)
			return
		}
		r := rand.New(rand.NewPCG(r.Uint64(), uint64(i)))
		writers.Go(func() {
			for range 1 + r.IntN(5) {
				p := b.pieces[r.IntN(len(b.pieces))]
				off := r.IntN(len(files[i]) + 1)
				if r.IntN(3) > 0 {
					off = len(files[i])
				}
				_, err := f.WriteAt(p, int64(off))
				if fault.ClassOf(err) == fault.ReadOnly || fault.ClassOf(err) == fault.Invalid {
					break
				}
				if err != nil {
					b.t.Errorf("write: %v", err)
					break
				}
				if grow := off + len(p) - len(files[i]); grow > 0 {
					files[i] = append(files[i], make([]byte, grow)...)
				}
				copy(files[i][off:], p)
			}
			b.fail("close", f.Close())
		})
	}
	if r.IntN(2) == 0 {
		writers.Wait()
	}
	abort := r.IntN(3) == 0
	if abort {
		b.fail("abort", d.Abort())
	} else if _, err := d.Seal(ctx); err != nil {
		b.t.Errorf("seal: %v", err)
		abort = true
		b.fail("abort", d.Abort())
	}
	writers.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if abort {
		b.gone[name] = true
		return
	}
	b.sealed[name] = map[string][]byte{}
	for i, content := range files {
		b.sealed[name][fmt.Sprint("f", i)] = content
	}
}

func (b *besideModel) remove(s *Store, name string) {
	err := s.Remove(context.Background(), []string{name})
	if b.fail("remove", err, fault.NotFound, fault.InUse); err != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.sealed, name)
	b.gone[name] = true
}

// read holds a checkpoint against the model, which may be removed meanwhile. A file that is open stays readable.
func (b *besideModel) read(s *Store, name string) {
	b.mu.Lock()
	files := b.sealed[name]
	b.mu.Unlock()
	c, err := s.Checkpoint(name)
	if err != nil {
		b.fail("open", b.unlessGone(name, err), fault.NotFound)
		return
	}
	for p, want := range files {
		f, err := c.Open(p)
		if err != nil {
			b.fail("open file", err, fault.NotFound)
			return
		}
		got := make([]byte, len(want))
		if n, err := f.ReadAt(got, 0); n != len(want) || err != nil && !errors.Is(err, io.EOF) ||
			!bytes.Equal(got, want) || f.Size() != int64(n) {
			b.t.Errorf("%s/%s: %d bytes of %d, %v", name, p, n, len(want), err)
		}
		b.fail("close", f.Close())
	}
}

// unlessGone gives err unless somebody removed the checkpoint.
func (b *besideModel) unlessGone(name string, err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sealed[name] == nil {
		return nil
	}
	return err
}

// check holds the whole store against the model while nothing runs.
func (b *besideModel) check(s *Store) {
	s.reading.DropCache()
	list, err := s.List(context.Background())
	if err != nil {
		b.t.Errorf("list: %v", err)
	}
	var names []string
	bearer := map[string]string{}
	for _, i := range list {
		names = append(names, i.Name)
		for _, tag := range i.Tags {
			if other := bearer[tag]; other != "" {
				b.t.Errorf("%s is a tag of %s and of %s", tag, other, i.Name)
			}
			bearer[tag] = i.Name
		}
	}
	slices.Sort(names)
	if want := slices.Sorted(maps.Keys(b.sealed)); !slices.Equal(names, want) {
		b.t.Errorf("there are\n%s\nand not\n%s", strings.Join(names, " "), strings.Join(want, " "))
	}
	for name := range b.sealed {
		b.read(s, name)
	}
	if _, err := s.GC(context.Background(), upkeep.GCOptions{}); err != nil {
		b.t.Errorf("gc: %v", err)
	}
	s.reading.DropCache()
	for name := range b.sealed {
		b.read(s, name)
	}
	mustVerify(b.t, s, 0)
	if n := len(s.chunks.RecentChunks()); n > 0 {
		b.t.Errorf("%d chunks count as recent", n)
	}
	if n := s.chunks.CountPinners(); n > 0 {
		b.t.Errorf("%d drafts pin slots", n)
	}
}
