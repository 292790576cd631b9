package upkeep

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/latest"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/pageset"
	"github.com/gpucr/gpucr-fs/index/reading"
)

// GC gives back the space of payload that no checkpoint uses, and removes incomplete checkpoints.
//
// It never guesses. If a manifest cannot be read, GC collects only packs that were begun after that checkpoint was
// sealed, for the checkpoint cannot use these. A chunk that a manifest names and the index does not know is kept
// wherever a journal lists it. In both cases the error (Class Corrupt) names what is damaged, and the result still
// tells what was given back. A pack whose journal is damaged, or does not list a slot in use, is left alone:
// GCResult.Kept.
func (s *Jobs) GC(ctx context.Context, o GCOptions) (GCResult, error) {
	if err := s.chunks.MayWrite("gc"); err != nil && !o.DryRun {
		return GCResult{}, err
	}
	ctx, done := s.during(ctx)
	defer done()
	if err := s.gcMu.Acquire(ctx, 1); err != nil {
		return GCResult{}, err
	}
	defer s.gcMu.Release(1)
	if o.Progress == nil {
		o.Progress = func(int64, int64) {}
	}
	g := collection{s: s, o: o, live: pageset.Slots{}, wanted: map[chunk.ID]bool{}, unclear: map[string]bool{}}
	g.res.Incomplete = s.roots.Incomplete()
	if !o.DryRun {
		if err := s.chunks.Commit(nil); err != nil { // an index that a full disk has cut is mended, if there is room
			return g.res, err
		}
	}
	if err := g.rootsThere(); err != nil {
		return g.res, err
	}
	if !o.DryRun {
		if err := s.roots.RemoveIncomplete(ctx); err != nil {
			return g.res, err
		}
		s.chunks.Packs.Trim()
	}
	defer s.chunks.KeepPins()()
	defer s.chunks.Distant.Hold()()
	s.Hooks.Begun.Run()
	if err := g.findLive(ctx); err != nil {
		return g.res, err
	}
	s.Hooks.Found.Run()
	packs, err := s.chunks.Packs.Packs()
	if err != nil {
		return g.res, fault.Classify("gc", err)
	}
	if g.keepTo, err = s.keepTo(); err != nil {
		return g.res, fault.Classify("gc", err)
	}
	if err := g.findHorizon(packs); err != nil {
		return g.res, fault.Classify("gc", err)
	}
	if err := s.chunks.DB.Whole(); err != nil { // what was not found until now may be there
		return g.res, g.unreadable(chunks.IndexFolder, err)
	}
	if s.chunks.DB.Cut() && !o.DryRun {
		return g.res, fault.Classify("gc", s.chunks.DB.NoRoom(""))
	}
	for i, n := range packs {
		if err := ctx.Err(); err != nil {
			return g.res, err
		}
		if err := g.sweep(n); err != nil {
			return g.res, fault.Classify("gc", err)
		}
		o.Progress(int64(i+1), int64(len(packs)))
	}
	if !o.DryRun {
		if err := g.forget(); err != nil {
			return g.res, err
		}
		if err := s.chunks.DB.Compact(); err != nil {
			return g.res, fault.Classify("gc", err)
		}
	}
	return g.res, g.damage()
}

// rootsThere fails where the index, the journals and the open store do not tell the same roots. The index has lost one,
// or shows an older record of it, as where Badger merged a table that could not be read; or the store was opened while
// it did. The root of a removed checkpoint stays in the index as an empty record. Of the last move they must tell the
// same, too: findHorizon goes by it where the index has lost parts of manifests.
func (g *collection) rootsThere() error {
	if err := g.s.chunks.DB.Whole(); err != nil {
		return g.unreadable(chunks.IndexFolder, err)
	}
	told, err := g.journalledRoots()
	if err != nil {
		return err
	}
	err = g.rootsDiffer(told)
	if errors.Is(err, keys.ErrDamaged) {
		// A commit may just have journalled it, or may have failed.
		if err := g.s.chunks.Commit(nil); err != nil {
			if g.o.DryRun {
				return nil // it may be there when the next one succeeds
			}
			return err
		}
		err = g.rootsDiffer(told)
	}
	if err != nil {
		return g.unreadable(chunks.IndexFolder, err)
	}
	return nil
}

// journalledRoots gives the last record of each root that the journals tell of, and that of the last move, without
// their values.
func (g *collection) journalledRoots() (map[string]pack.KV, error) {
	told, bad, err := g.s.chunks.Journalled(func(key string) bool {
		return manifest.IsRootKey(key) || key == chunks.MovedKey
	})
	if err != nil && bad == 0 {
		return nil, fault.Classify("gc", err)
	} else if err != nil {
		return nil, g.unreadable(pack.JournalName(bad), err)
	}
	return told, nil
}

// rootsDiffer is ErrDamaged where the index is behind the roots that were journalled, or is unlike those of the open
// store.
func (g *collection) rootsDiffer(told map[string]pack.KV) error {
	if err := latest.Behind(g.s.chunks.DB, told); err != nil {
		return err
	}
	return g.s.roots.Unlike()
}

// forget gives back what is known of packs of the bucket that nothing needs. What damage hides may need any of them.
func (g *collection) forget() (err error) {
	if g.o.Stands == nil || len(g.errs) > 0 || len(g.unclear) > 0 {
		return nil
	}
	needed := func(n uint32) bool { return g.live[n] != nil }
	g.res.Forgotten, err = g.s.chunks.Distant.Forget(needed, g.o.Stands, g.s.chunks.Commit)
	return err
}

// collection is the state of one run of GC.
type collection struct {
	s    *Jobs
	o    GCOptions
	live pageset.Slots
	res  GCResult

	wanted  map[chunk.ID]bool // named by manifests, and not in the index
	unclear map[string]bool   // ids of checkpoints whose manifest cannot be read
	horizon uint32            // what the unclear ones use lies in no pack above this one
	keepTo  uint32            // see Jobs.keepTo
	errs    []error           // damage that was met
	more    int               // how many errors errs leaves out
}

// maxGCErrors bounds the damage that a collection names.
const maxGCErrors = 20

// addDamage remembers damage that keeps something from being given back.
func (g *collection) addDamage(err error) {
	if len(g.errs) < maxGCErrors {
		g.errs = append(g.errs, err)
	} else {
		g.more++
	}
}

// damage gives what was met as one error.
func (g *collection) damage() error {
	if len(g.errs) == 0 {
		return nil
	}
	texts := make([]string, len(g.errs))
	for i, err := range g.errs {
		texts[i] = err.Error()
	}
	if g.more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", g.more))
	}
	return &fault.Error{Class: fault.Corrupt, Op: "gc",
		Err:  errors.New("not everything could be collected: " + strings.Join(texts, "; ")),
		Hint: fault.RepairHint(g.s.o.Dir) + ", or remove the checkpoints that are damaged"}
}

// findLive finds the slots that sealed checkpoints use. Drafts are not looked at: they pin what they use.
func (g *collection) findLive(ctx context.Context) error {
	s := g.s
	for _, id := range s.roots.DamagedIDs() {
		g.unclear[id] = true
		g.addDamage(fmt.Errorf("the root record of checkpoint %s is damaged", id))
	}
	l := reading.NewLocator(s.chunks)
	roots, pbs := s.roots.Snapshot()
	for i, r := range roots {
		pb := pbs[i]
		bad := func(file string, off int64, err error) error {
			if g.unclear[pb.Id] {
				return nil // once is enough
			}
			g.unclear[pb.Id] = true
			g.addDamage(&fault.Error{Class: fault.Corrupt, Checkpoint: pb.Name, File: file, Offset: off, Err: err})
			return nil
		}
		told := false
		err := s.reading.WalkSegments(ctx, r, pb, func(e *manifestpb.Entry, seg *manifest.Segment) error {
			for _, c := range seg.Chunks {
				loc, before, err := l.Places(c.ID)
				if err == nil {
					if g.live.Set(loc) {
						g.res.LiveChunks++
					}
					if before != (pack.Loc{}) {
						g.live.Set(before) // a crash before the next commit leaves only this one
					}
					continue
				}
				if s.roots.IsGone(r) {
					return reading.ErrRemoved
				}
				g.wanted[c.ID] = true
				if !told {
					g.addDamage(&fault.Error{Class: fault.Corrupt, Checkpoint: pb.Name, File: e.Path, Offset: seg.Start,
						Err: err})
				}
				told = true
			}
			return nil
		}, bad)
		if err != nil && !errors.Is(err, reading.ErrRemoved) {
			return err
		}
	}
	return nil
}

// findHorizon finds the newest pack that what the unclear checkpoints use may lie in. All of it was written before
// the root record was, which is journalled in the pack that takes appends then, or, when it was moved since, in a
// newer one. Unless Optimize has stored it anew since: then it may lie in any pack up to the last that Optimize
// wrote.
func (g *collection) findHorizon(packs []uint32) error {
	if len(g.unclear) == 0 {
		return nil
	}
	found := map[string]uint32{}
	for _, n := range packs {
		_, _, err := g.s.chunks.Packs.Read(n, 0, func(r pack.Record) error {
			if r.KV != nil && manifest.IsRootKey(r.KV.Key) && g.unclear[manifest.OwnerOf(r.KV.Key)] {
				found[manifest.OwnerOf(r.KV.Key)] = n
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for id := range g.unclear {
		n, ok := found[id]
		if !ok {
			n = math.MaxUint32
		}
		g.horizon = max(g.horizon, n)
	}
	to, err := g.s.movedTo()
	g.horizon = max(g.horizon, to)
	return err
}

// keepTo gives the number of the last pack of which nothing may be given back; 0 if there is none. A journal that
// was put aside, or is gone with the index that knew it, may tell of checkpoints that nothing else knows of: what
// they use lies in its pack and in those before.
func (s *Jobs) keepTo() (uint32, error) {
	var last uint32
	aside, err := s.chunks.Packs.AllAside()
	if err != nil {
		return 0, err
	}
	for n := range aside {
		last = max(last, n)
	}
	orphans, err := s.chunks.Packs.Orphans()
	if err != nil {
		return 0, err
	}
	for _, n := range orphans {
		mark, err := s.chunks.DB.Mark(n)
		if err != nil {
			return 0, err
		}
		if mark == 0 {
			last = max(last, n)
		}
	}
	if last == 0 {
		return 0, nil
	}
	to, err := s.movedTo() // what they use may have been stored anew since
	return max(last, to), err
}

// Reclaimable gives the bytes of disk that a collection would give back. Bytes that damage keeps it from deciding about
// do not count.
func (s *Jobs) Reclaimable(ctx context.Context) (int64, error) {
	dry, err := s.GC(ctx, GCOptions{DryRun: true})
	if err != nil && (fault.ClassOf(err) != fault.Corrupt || keys.Lacks(err)) {
		return 0, err
	}
	return dry.Reclaimable, nil
}
