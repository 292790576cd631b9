package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/index/remote/object"
)

// VerifyOptions of a verification of the remote store.
type VerifyOptions struct {
	Names  []string // checkpoints; all when empty
	Subset float64  // share of the payload to read, 0 < Subset <= 1; 0 means 1
	// Holds refuses a slot, padding included, that does not hold what a chunk's location and id say.
	Holds func(c pack.Chunk, slot []byte) error
	// Progress is told how many packs of how many were dealt with, as far as known.
	Progress func(done, total int64)
}

// Problem is one piece of damage in a bucket.
type Problem struct {
	Checkpoint string `json:"checkpoint,omitempty"` // its name; its id where the damage is in its hot set
	Pack       string `json:"pack,omitempty"`
	Text       string `json:"text"`
}

// Verified is what a verification saw. The remote store is sound when Problems is empty.
type Verified struct {
	Checkpoints int       `json:"checkpoints"`
	Packs       int       `json:"packs"`
	Chunks      int64     `json:"chunks"` // in their lists
	Bytes       int64     `json:"bytes"`  // of slots that were read and checked
	Problems    []Problem `json:"problems"`
}

const (
	// maxProblems bounds what a verification tells.
	maxProblems = 1000
	// verifyRun is how many bytes of a pack are read by one request, or left out together.
	verifyRun = 4 << 20
	// verifiers is how many requests are under way at once.
	verifiers = 8
)

// verification is one run.
type verification struct {
	s     *Store
	o     VerifyOptions
	read  map[string]bool // packs whose payload was looked at
	fresh []string        // those of them that were looked at for the present root

	mu     sync.Mutex
	res    Verified
	rotten map[string]catalog.Pack // packs that do not hold what they should
}

// Verify checks checkpoints of the remote store: that their parents stand, their lists, that all packs stand and hold
// what the lists say, and the payload of these or a share of it, read once for each pack. Damage is in the result, no
// error. New checkpoints do not use a damaged pack from then on: they bring its content anew.
func (s *Store) Verify(ctx context.Context, o VerifyOptions) (Verified, error) {
	v := &verification{s: s, o: o, read: map[string]bool{}, res: Verified{Problems: []Problem{}},
		rotten: map[string]catalog.Pack{}}
	if o.Subset == 0 {
		v.o.Subset = 1
	}
	err := v.roots(ctx)
	for id, p := range v.rotten {
		if rerr := s.c.Retire(ctx, []catalog.Pack{p}); rerr != nil {
			v.addProblem(Problem{Pack: id, Text: "new checkpoints may still use it: " + rerr.Error()})
		}
	}
	return v.res, err
}

// roots checks what was asked for.
func (v *verification) roots(ctx context.Context) error {
	const op = "verify remote store"
	for _, name := range v.o.Names {
		if err := v.withHot(ctx, name); err != nil {
			return named(op, name, err)
		}
	}
	if len(v.o.Names) > 0 {
		return nil
	}
	for r, err := range v.s.c.All(ctx) {
		switch {
		case errors.Is(err, catalog.ErrCorrupt), errors.Is(err, catalog.ErrVersion):
			v.addProblem(Problem{Text: err.Error()})
			continue
		case err != nil:
			return Classify(op, err)
		case r.State != catalog.Sealed:
			continue
		}
		_, err := v.root(ctx, r.Name)
		if fault.ClassOf(Classify(op, err)) == fault.NotFound {
			continue // removed meanwhile
		}
		if err != nil {
			return named(op, r.Name, err)
		}
	}
	for _, err := range v.s.c.Kept(ctx) {
		switch {
		case errors.Is(err, catalog.ErrCorrupt):
			v.addProblem(Problem{Text: err.Error() + keptForReaders})
		case errors.Is(err, catalog.ErrVersion):
			v.addProblem(Problem{Text: err.Error()})
		case err != nil:
			return Classify(op, err)
		}
	}
	return nil
}

// keptForReaders says what to do with an object of those below removed/ that is damaged.
const keptForReaders = "; gc --remote fails while it is there: delete the object when nobody restores from a " +
	"checkpoint that was removed"

func (v *verification) addProblem(p Problem) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if catalog.IsBeside(p.Checkpoint) {
		p.Checkpoint, p.Text = strings.TrimPrefix(p.Checkpoint, catalog.Beside("")), "its hot set: "+p.Text
	}
	if len(v.res.Problems) < maxProblems {
		v.res.Problems = append(v.res.Problems, p)
	}
}

// damage says whether an error is of what lies in the bucket, and not of the way there.
func damage(err error) bool {
	return errors.Is(err, pack.ErrCorrupt) || errors.Is(err, pack.ErrVersion) || errors.Is(err, catalog.ErrCorrupt) ||
		bucket.ClassOf(err) == bucket.Corrupt
}

// withHot checks a checkpoint, and its hot set if that has a root of its own.
func (v *verification) withHot(ctx context.Context, name string) error {
	if catalog.IsBeside(name) {
		return fmt.Errorf("%s: %w", name, catalog.ErrNotFound)
	}
	id, err := v.root(ctx, name)
	if err != nil || !manifest.ValidID(id) {
		return err
	}
	if _, err = v.root(ctx, catalog.Beside(id)); errors.Is(err, catalog.ErrNotFound) {
		return nil
	}
	return err
}

// root checks what a root names: a checkpoint, whose id it gives if that can be read, or a hot set.
func (v *verification) root(ctx context.Context, name string) (id string, err error) {
	before, problems, rotten := v.res, len(v.res.Problems), v.rotten
	v.fresh = nil
	err = foundAnew(func() error {
		v.res, v.res.Problems, v.rotten = before, v.res.Problems[:problems], maps.Clone(rotten)
		for _, p := range v.fresh { // what was wrong with them is told anew
			delete(v.read, p)
		}
		v.fresh = nil
		id, err = v.rootFound(ctx, name)
		return err
	})
	return id, err
}

func (v *verification) rootFound(ctx context.Context, name string) (id string, err error) {
	k, err := v.s.c.Find(ctx, name)
	if err != nil {
		return "", err
	}
	if !catalog.IsBeside(name) {
		v.res.Checkpoints++
	}
	e, err := v.s.entryOf(k.Record)
	if err != nil {
		v.addProblem(Problem{Checkpoint: name, Text: err.Error()})
		return "", nil
	}
	if err := v.s.parentStands(ctx, e); err != nil {
		now, gone := v.s.c.Find(ctx, name)
		if gone == nil && now.Nonce != k.Nonce {
			gone = catalog.ErrMoved // another one has the name by now
		}
		if gone != nil || fault.ClassOf(err) == fault.Unreachable {
			return "", cmp.Or(gone, err)
		}
		v.addProblem(Problem{Checkpoint: name, Text: err.Error()})
	}
	return e.ID, v.packs(ctx, k, e)
}

// packs checks the list of a root, and the packs that it speaks of.
func (v *verification) packs(ctx context.Context, k *catalog.Checkpoint, e Entry) error {
	bad := func(err error) error {
		if ctx.Err() == nil && damage(err) {
			v.addProblem(Problem{Checkpoint: k.Name, Text: err.Error()})
			return nil
		}
		return err
	}
	list, err := listOf(ctx, k, e)
	if err != nil {
		return bad(err)
	}
	var packs []object.PackRef
	var chunks []pack.Chunk
	settle := func() error {
		if len(chunks) == 0 {
			return nil
		}
		p := packs[chunks[0].Loc.Pack-1]
		err := v.pack(ctx, k, p, chunks)
		chunks = chunks[:0]
		return bad(err)
	}
	err = object.Decode(list, v.s.id, object.Visitor{
		Coder: v.s.o.Cipher,
		Pack:  func(_ uint32, p object.PackRef) error { packs = append(packs, p); return nil },
		Chunk: func(c pack.Chunk) error {
			v.res.Chunks++
			if len(chunks) > 0 && chunks[0].Loc.Pack != c.Loc.Pack {
				if err := settle(); err != nil {
					return err
				}
			}
			chunks = append(chunks, c)
			return nil
		},
	})
	if err == nil {
		err = settle()
	}
	return bad(err)
}

// pack checks what a checkpoint's list says of a pack against what the pack says of itself, and its payload if that was
// not done before.
func (v *verification) pack(ctx context.Context, k *catalog.Checkpoint, p object.PackRef, listed []pack.Chunk) error {
	bad := func(rots bool, format string, args ...any) {
		v.addProblem(Problem{Checkpoint: k.Name, Pack: p.Name.String(), Text: fmt.Sprintf(format, args...)})
		if !rots {
			return
		}
		v.mu.Lock()
		v.rotten[p.Name.String()] = packOf(p)
		v.mu.Unlock()
	}
	id := p.Name.String()
	r := &packReader{ctx: ctx, k: k, p: packOf(p)}
	in := map[uint32]pack.Chunk{}
	var all []pack.Chunk
	read := func() error {
		clear(in)
		all = all[:0]
		return object.ReadPack(r, p.Size, v.s.id, v.s.o.Cipher, func(c pack.Chunk) error {
			in[c.Loc.Page] = c
			all = append(all, c)
			return nil
		})
	}
	err := read()
	if damage(err) { // once more: the damage may have been on the way
		err = read()
	}
	if damage(err) {
		bad(!errors.Is(err, pack.ErrVersion), "%v", err)
		return nil
	}
	if err != nil {
		return err
	}
	for _, c := range listed {
		c.Loc.Pack = in[c.Loc.Page].Loc.Pack
		if in[c.Loc.Page] != c {
			bad(false, "it does not hold chunk %.12s at %d, as the checkpoint's list says", c.ID, c.Loc.Offset())
		}
	}
	if v.read[id] {
		return nil
	}
	v.read[id], v.fresh = true, append(v.fresh, id)
	v.res.Packs++
	if v.o.Progress != nil {
		v.o.Progress(int64(len(v.read)), int64(max(len(v.read), len(k.Packs)-1)))
	}
	reads, ctx := errgroup.WithContext(ctx)
	reads.SetLimit(verifiers)
	r = &packReader{ctx: ctx, k: k, p: packOf(p)}
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].Loc.Offset()+all[n].Loc.Slot()-all[0].Loc.Offset() <= verifyRun {
			n++
		}
		run := all[:n]
		if all = all[n:]; v.o.Subset < 1 && rand.Float64() >= v.o.Subset {
			continue
		}
		reads.Go(func() error {
			first := run[0].Loc.Offset()
			last := run[len(run)-1].Loc
			b := make([]byte, last.Offset()+last.Slot()-first)
			if n, err := r.ReadAt(b, first); n < len(b) {
				if err == nil || errors.Is(err, io.EOF) {
					err = fmt.Errorf("%w: cut short", object.ErrCorrupt)
				}
				if damage(err) {
					bad(false, "%v", err) // claims look at the length themselves
					return nil
				}
				return err
			}
			for _, c := range run {
				slot := b[c.Loc.Offset()-first:][:c.Loc.Slot()]
				err := v.o.Holds(c, slot)
				if damage(err) { // once more: the damage may have been on the way
					if _, rerr := r.ReadAt(slot, c.Loc.Offset()); rerr != nil && !errors.Is(rerr, io.EOF) {
						return rerr
					}
					err = v.o.Holds(c, slot)
				}
				switch {
				case damage(err):
					bad(!errors.Is(err, pack.ErrVersion), "chunk %.12s at %d: %v", c.ID, c.Loc.Offset(), err)
				case err != nil:
					return err
				}
			}
			v.mu.Lock()
			v.res.Bytes += int64(len(b))
			v.mu.Unlock()
			return nil
		})
	}
	return reads.Wait()
}
