package upkeep

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/pageset"
	"github.com/gpucr/gpucr-fs/index/reading"
	"github.com/gpucr/gpucr-fs/index/roots"
)

// maxProblems bounds what one verification reports; a store with more is to be rebuilt anyway.
const maxProblems = 10000

// Verify reads manifests, journals and payload, and reports every damage; err only where it could not go on.
// Payload is held against its guard and, decoded, against its id. Memory: a bit per 4 KiB of pack, and the journal
// of one pack.
//
// A verification of the whole store saves how far it has come with the payload (verifyprogress.go), also when ctx
// ends. With Resume the next one goes on there: it looks at all manifests and journals, at payload that was not
// read, and at chunks recorded as damaged, so that its result names the problems of all parts.
func (s *Jobs) Verify(ctx context.Context, o VerifyOptions) (VerifyResult, error) {
	ctx, done := s.during(ctx)
	defer done()
	if err := s.gcMu.Acquire(ctx, 1); err != nil {
		return VerifyResult{}, err
	}
	defer s.gcMu.Release(1)
	if o.Subset <= 0 || o.Subset > 1 {
		o.Subset = 1
	}
	whole := o.Subset == 1 && len(o.Names) == 0
	if err := o.validate(whole); err != nil {
		return VerifyResult{}, err
	}
	if o.Progress == nil {
		o.Progress = func(int64, int64) {}
	}
	if err := s.chunks.Commit(nil); err != nil {
		return VerifyResult{}, err
	}
	v := &verification{s: s, o: o, used: pageset.Slots{}, bad: map[chunk.ID]string{},
		unlisted: map[uint32]*pageset.Pages{}}
	v.res.Problems = []Problem{}
	c := WallClock
	if s.Hooks.Clock != nil {
		c = *s.Hooks.Clock
	}
	v.pace = newPace(o.Rate, c)
	if whole {
		resumed := false
		if v.progress, resumed = s.beginProgress(o.Resume, c); resumed {
			v.res.Begun = v.progress.begun
		}
	}
	if err := v.chooseRoots(); err != nil {
		return v.res, err
	}
	for range s.roots.DamagedIDs() {
		v.problem(Problem{Text: "a root record of the index is damaged"})
	}
	err := v.check(ctx)
	// What is reported has been recorded: it is healed when any process stores the content again.
	if e := s.chunks.RecordDamage(); e != nil && len(v.bad) > 0 {
		v.problem(Problem{Text: "the damage could not be recorded, so content that comes by again may be taken for " +
			"stored: " + e.Error()})
	}
	switch {
	case !whole:
	case err == nil:
		v.progress.remove()
	default:
		v.progress.save()
	}
	return v.res, err
}

func (o *VerifyOptions) validate(whole bool) error {
	const op = "verify"
	if o.Rate < 0 {
		return &fault.Error{Class: fault.Invalid, Op: op, Err: fmt.Errorf("a rate of %d bytes a second", o.Rate)}
	}
	if o.Resume && !whole {
		return &fault.Error{Class: fault.Invalid, Op: op,
			Err:  errors.New("only a verification of the whole store can be resumed"),
			Hint: "leave out names and the share to read, or do not resume"}
	}
	return nil
}

func (v *verification) check(ctx context.Context) error {
	if err := v.manifests(ctx); err != nil {
		return err
	}
	// A chunk in use may have been stored anew a moment ago: its journal is to tell of it when it is read.
	if err := v.s.chunks.Commit(nil); err != nil {
		return err
	}
	if err := v.payload(ctx); err != nil {
		return fault.Classify("verify", err)
	}
	if err := v.nameBad(ctx); err != nil {
		return err
	}
	return v.setAside()
}

// setAside adds what is kept without being accounted for, and is not among the problems already.
func (v *verification) setAside() error {
	all, err := v.s.chunks.Aside.All()
	for _, a := range all {
		if !slices.ContainsFunc(v.res.Problems,
			func(p Problem) bool { return p.Pack != "" && filepath.Join(chunks.PacksFolder, p.Pack) == a.File }) {
			v.res.SetAside = append(v.res.SetAside, a)
		}
	}
	return err
}

type verification struct {
	s        *Jobs
	o        VerifyOptions
	roots    []*roots.Root
	pbs      []*manifestpb.Checkpoint
	used     pageset.Slots             // slots that the chosen checkpoints use
	unlisted map[uint32]*pageset.Pages // packs whose journals lack slots in use, and the slots that they list
	pace     pace
	progress *verifyProgress // nil where not all of the store is verified

	mu   sync.Mutex // guards what follows, while workers run
	res  VerifyResult
	bad  map[chunk.ID]string // damaged chunks, and what is wrong with them
	done int64
}

func (v *verification) problem(p Problem) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.res.Problems) < maxProblems {
		v.res.Problems = append(v.res.Problems, p)
	}
}

func (v *verification) chooseRoots() error {
	s := v.s
	if len(v.o.Names) == 0 {
		v.roots, v.pbs = s.roots.Snapshot()
		return nil
	}
	var err error
	v.roots, v.pbs, err = s.roots.AllSealed("verify", v.o.Names)
	return err
}

// manifests checks that every chunk a file needs is known to the index.
func (v *verification) manifests(ctx context.Context) error {
	l := reading.NewLocator(v.s.chunks)
	for i, r := range v.roots {
		pb := v.pbs[i]
		v.res.Checkpoints++
		bad := func(file string, off int64, err error) error {
			v.problem(Problem{Checkpoint: pb.Name, File: file, Offset: off, Text: err.Error()})
			return nil
		}
		err := v.s.reading.WalkSegments(ctx, r, pb, func(e *manifestpb.Entry, seg *manifest.Segment) error {
			for ci, c := range seg.Chunks {
				loc, err := l.Locate(c.ID)
				if err == nil && loc.Raw != c.Len {
					err = fmt.Errorf("%w: chunk of %d bytes, not %d", keys.ErrDamaged, loc.Raw, c.Len)
				}
				if err != nil && v.s.roots.IsGone(r) {
					return reading.ErrRemoved
				}
				if err != nil {
					return bad(e.Path, seg.Start+firstUse(seg, ci), err)
				}
				if v.used.Set(loc) && loc.Distant() {
					v.res.Distant++
				}
			}
			return nil
		}, bad)
		if err != nil && !errors.Is(err, reading.ErrRemoved) {
			return err
		}
	}
	return nil
}

// firstUse gives where in the segment chunk ci is used first.
func firstUse(seg *manifest.Segment, ci int) int64 {
	i := slices.IndexFunc(seg.Runs, func(r manifest.Run) bool { return int(r.Chunk) == ci })
	if i < 0 {
		return 0
	}
	return seg.Runs[i].Start
}

// payload reads the packs.
func (v *verification) payload(ctx context.Context) error {
	packs, err := v.s.chunks.Packs.Packs()
	if err != nil {
		return err
	}
	var total int64
	for _, n := range packs {
		if size, err := v.s.chunks.Packs.Size(n); err == nil {
			total += size
		}
	}
	for n := range v.used {
		if n < pack.FirstDistant && !slices.Contains(packs, n) {
			v.problem(Problem{Pack: pack.JournalName(n), Text: "the journal is gone"})
			v.unlisted[n] = &pageset.Pages{}
		}
	}
	if v.progress != nil {
		v.progress.keepOnly(packs)
	}
	for _, n := range packs {
		list, err := v.listed(n)
		if err != nil {
			v.problem(Problem{Pack: pack.JournalName(n), Text: err.Error()})
			continue
		}
		if err := v.readRest(ctx, n, list, total); err != nil {
			return err
		}
	}
	return v.readUnlisted(ctx, total)
}

// readRest checks the chunks of pack n that have not been read by the verification that this one goes on with, and
// those that are recorded as damaged.
func (v *verification) readRest(ctx context.Context, n uint32, list []pack.Chunk, total int64) error {
	if v.progress == nil {
		return v.readPack(ctx, list, total, func(int, int) {})
	}
	done := v.progress.done(n, list)
	var again []pack.Chunk
	for _, c := range list[:done] {
		if v.s.chunks.IsDamaged(c.ID, c.Loc) {
			again = append(again, c)
		} else {
			v.res.Earlier += c.Loc.Slot()
			v.done += c.Loc.Slot()
		}
	}
	if err := v.readPack(ctx, again, total, func(int, int) {}); err != nil {
		return err
	}
	v.progress.begin(n, list, done)
	return v.readPack(ctx, list[done:], total, func(from, to int) {
		v.progress.read(done+from, done+to)
		v.progress.saveSometimes()
	})
}

// readUnlisted checks the chunks in use that no journal lists, as far as the index knows them.
func (v *verification) readUnlisted(ctx context.Context, total int64) error {
	if len(v.unlisted) == 0 {
		return nil
	}
	byPack := map[uint32][]pack.Chunk{}
	err := v.s.chunks.DB.Chunks(func(id chunk.ID, loc pack.Loc, err error) error {
		if err != nil {
			return nil // found by those who look for the chunk
		}
		if seen := v.unlisted[loc.Pack]; seen != nil && v.used[loc.Pack].Has(loc.Page) && !seen.Has(loc.Page) {
			byPack[loc.Pack] = append(byPack[loc.Pack], pack.Chunk{ID: id, Loc: loc})
		}
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	for _, list := range byPack {
		slices.SortFunc(list, func(a, b pack.Chunk) int { return int(a.Loc.Page) - int(b.Loc.Page) })
		if err := v.readPack(ctx, list, total, func(int, int) {}); err != nil {
			return err
		}
	}
	return nil
}

// listed gives the chunks of pack n that are to be read, in the order of their slots.
func (v *verification) listed(n uint32) ([]pack.Chunk, error) {
	durable, err := v.s.chunks.DB.Durable(n)
	if err != nil {
		return nil, err
	}
	dead, err := v.s.chunks.DeadSlots(n, 0)
	if err != nil {
		return nil, err
	}
	seen := &pageset.Pages{}
	// Room for what is in use, at once: a list that grows by itself leaves several times its size to the collector.
	list := make([]pack.Chunk, 0, int(float64(v.used[n].Count())*v.o.Subset))
	end, bad, err := v.s.chunks.Packs.Read(n, 0, func(r pack.Record) error {
		c := r.Chunk
		if c == nil || dead[c.Loc.Page] {
			return nil
		}
		seen.Set(c.Loc.Page)
		if len(v.o.Names) > 0 && !v.used[n].Has(c.Loc.Page) {
			return nil
		}
		// The id is uniformly distributed: its first two bytes choose the subset.
		if float64(int(c.ID[0])<<8|int(c.ID[1])) < v.o.Subset*65536 {
			list = append(list, *c)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	bad = v.s.chunks.Aside.Judge(n, durable, end, bad)
	for _, b := range bad {
		v.problem(Problem{Pack: pack.JournalName(n), Offset: b.Off,
			Text: fmt.Sprintf("%d bytes of the journal are damaged: %s", b.Len, b.Text)})
	}
	if durable > end && len(bad) == 0 {
		v.problem(Problem{Pack: pack.JournalName(n), Offset: end,
			Text: fmt.Sprintf("the journal has lost its last %d bytes", durable-end)})
	}
	if used := v.used[n]; used != nil {
		if page, lost := used.Missing(seen); lost {
			if len(bad) == 0 && durable <= end {
				v.problem(Problem{Pack: pack.JournalName(n), Offset: int64(page) * chunk.PageSize,
					Text: "the journal does not list chunks that are in use"})
			}
			v.unlisted[n] = seen
		}
	}
	slices.SortFunc(list, func(a, b pack.Chunk) int { return int(a.Loc.Page) - int(b.Loc.Page) })
	return list, nil
}

// readPack checks chunks of one pack, runs of neighbours at a time, on all workers. It tells of each run, by its begin
// and end in the list, when it has been checked.
func (v *verification) readPack(ctx context.Context, list []pack.Chunk, total int64, checked func(from, to int)) error {
	g, running := errgroup.WithContext(ctx)
	g.SetLimit(v.s.o.Workers)
	most := v.pace.most(reading.MaxRead)
	for next := 0; next < len(list); {
		from, to, bytes := next, next+1, list[next].Loc.Slot()
		for ; to < len(list); to++ {
			last, loc := list[to-1].Loc, list[to].Loc
			if loc.Offset() != last.Offset()+last.Slot() || bytes+loc.Slot() > most {
				break
			}
			bytes += loc.Slot()
		}
		if v.pace.wait(running, bytes) != nil {
			break
		}
		g.Go(func() error {
			if err := v.checkRun(list[from:to], bytes, total); err != nil {
				return err
			}
			checked(from, to)
			return nil
		})
		next = to
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

func (v *verification) checkRun(run []pack.Chunk, bytes, total int64) error {
	s := v.s
	locs, bufs := make([]pack.Loc, len(run)), make([][]byte, len(run))
	for i, c := range run {
		b, err := s.chunks.Arena.Get(int(c.Loc.Slot()))
		if err != nil {
			return err
		}
		locs[i], bufs[i] = c.Loc, b
	}
	errs := s.chunks.Packs.ReadSlots(locs, bufs, true)
	var lack error // of descriptors or memory: it tells nothing of the chunks
	for i, c := range run {
		data, err := bufs[i], errs[i]
		if err == nil {
			data, err = s.chunks.Decode(c.Loc, data)
		}
		if err == nil && s.chunks.Packs.Coder().Sum(data) != c.ID {
			err = fmt.Errorf("pack %s at %d: %w: the content is not what its id says", pack.Name(c.Loc.Pack),
				c.Loc.Offset(), pack.ErrCorrupt)
		}
		s.chunks.Arena.Put(data)
		switch {
		case keys.Lacks(err):
			lack = err
		case err != nil:
			v.foundBad(c, err)
		default:
			s.chunks.SetSound(c)
		}
	}
	if lack != nil {
		return lack
	}
	v.mu.Lock()
	v.res.Chunks += int64(len(run))
	v.res.Bytes += bytes
	v.done += bytes
	done := v.done
	v.mu.Unlock()
	v.o.Progress(done, total)
	return nil
}

func (v *verification) foundBad(c pack.Chunk, err error) {
	if loc, e := v.s.chunks.Locate(c.ID); e == nil && loc != c.Loc {
		return // stored anew elsewhere: nobody reads this slot
	}
	v.s.chunks.SetDamaged(c.ID, c.Loc)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.bad[c.ID] = err.Error()
}

// nameBad finds the files that need the damaged chunks.
func (v *verification) nameBad(ctx context.Context) error {
	if len(v.bad) == 0 {
		return nil
	}
	named := map[chunk.ID]bool{}
	roots, pbs := v.s.roots.Snapshot()
	for i, r := range roots {
		pb := pbs[i]
		skip := func(string, int64, error) error { return nil } // reported already
		err := v.s.reading.WalkSegments(ctx, r, pb, func(e *manifestpb.Entry, seg *manifest.Segment) error {
			for ci, c := range seg.Chunks {
				if why, bad := v.bad[c.ID]; bad {
					named[c.ID] = true
					v.problem(Problem{Checkpoint: pb.Name, File: e.Path, Offset: seg.Start + firstUse(seg, ci),
						Text: why})
				}
			}
			return nil
		}, skip)
		if err != nil && !errors.Is(err, reading.ErrRemoved) {
			return err
		}
	}
	for id, why := range v.bad {
		if !named[id] {
			v.problem(Problem{Text: why + " (no sealed checkpoint uses it)"})
		}
	}
	return nil
}
