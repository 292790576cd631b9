package index

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// GC gives back the space of payload that no checkpoint uses, and removes incomplete checkpoints. It refuses to work on a store whose manifests are damaged: what they
// used to name could no longer be told from what nobody names.
func (s *Store) GC(ctx context.Context, o GCOptions) (GCResult, error) {
	s.gcMu.Lock()
	defer s.gcMu.Unlock()
	if o.Progress == nil {
		o.Progress = func(int64, int64) {}
	}
	g := collection{s: s, o: o, live: marks{}}
	g.res.Incomplete = s.incomplete()
	if s.damagedRoots > 0 {
		return g.res, &Error{Class: Corrupt, Op: "gc", Err: fmt.Errorf("%d root records are damaged", s.damagedRoots), Hint: damagedHint(s.dir)}
	}
	if !o.DryRun {
		if err := s.removeIncomplete(ctx); err != nil {
			return g.res, err
		}
		if err := s.commit(nil); err != nil {
			return g.res, err
		}
	}
	s.pinMu.Lock()
	s.collecting = true
	s.pinMu.Unlock()
	defer func() {
		s.pinMu.Lock()
		s.collecting = false
		s.unpin()
		s.pinMu.Unlock()
	}()
	if err := g.mark(ctx); err != nil {
		return g.res, err
	}
	packs, err := s.packs.Packs()
	if err != nil {
		return g.res, classify("gc", err)
	}
	if g.keepTo, err = s.keepTo(); err != nil {
		return g.res, classify("gc", err)
	}
	for i, n := range packs {
		if err := ctx.Err(); err != nil {
			return g.res, err
		}
		if err := g.sweep(n); err != nil {
			return g.res, classify("gc", err)
		}
		o.Progress(int64(i+1), int64(len(packs)))
	}
	if !o.DryRun {
		if err := s.db.compact(); err != nil {
			return g.res, classify("gc", err)
		}
	}
	return g.res, nil
}

// incomplete gives the names of checkpoints whose writer is gone.
func (s *Store) incomplete() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []string{}
	for _, r := range s.roots {
		if !r.pb.Sealed && !r.writing {
			out = append(out, r.name)
		}
	}
	slices.Sort(out)
	return out
}

// removeIncomplete deletes the records of checkpoints whose writer is gone, and records that belong to no checkpoint.
func (s *Store) removeIncomplete(ctx context.Context) error {
	s.mu.Lock()
	var gone []*root
	for id, r := range s.roots {
		if !r.pb.Sealed && !r.writing {
			gone = append(gone, r)
			delete(s.roots, id)
			if s.names[r.name] == r {
				delete(s.names, r.name)
			}
		}
	}
	s.mu.Unlock()
	for _, r := range gone {
		if err := errors.Join(s.putLocal([]put{{key: rootKey(r.id)}}), s.deleteBody(r.id)); err != nil {
			return err
		}
		s.announce(r.name)
	}
	orphans := map[string]bool{}
	for _, prefix := range []string{entriesPrefix, segPrefix, profilePrefix} {
		err := s.db.scan(metaKey(prefix), false, func(key, _ []byte, _ error) error {
			id := ownerOf(string(key[1:]))
			s.mu.Lock()
			// A key that this program does not make is left alone.
			if s.roots[id] == nil && manifest.ValidID(id) {
				orphans[id] = true
			}
			s.mu.Unlock()
			return ctx.Err()
		})
		if err != nil {
			return classify("gc", err)
		}
	}
	for id := range orphans {
		if err := s.deleteBody(id); err != nil {
			return err
		}
	}
	return nil
}

// collection is the state of one run of GC.
type collection struct {
	s      *Store
	o      GCOptions
	live   marks
	keepTo uint32 // see Store.keepTo
	res    GCResult
}

// mark finds the slots that sealed checkpoints use. Drafts need no marking: they pin what they use.
func (g *collection) mark(ctx context.Context) error {
	s := g.s
	l := newLocator(s)
	roots, pbs := s.snapshot()
	for i, r := range roots {
		pb := pbs[i]
		refuse := func(file string, off int64, err error) error {
			s.mu.Lock()
			gone := s.roots[pb.Id] != r
			s.mu.Unlock()
			if gone {
				return errRemoved
			}
			return &Error{Class: Corrupt, Op: "gc", Checkpoint: pb.Name, File: file, Offset: off, Err: err, Hint: "nothing was changed; " + damagedHint(s.dir) + ", or remove the checkpoint"}
		}
		err := s.walkSegments(ctx, r, pb, func(e *manifestpb.Entry, seg *manifest.Segment) error {
			for _, c := range seg.Chunks {
				loc, err := l.locate(c.ID)
				if err != nil {
					return refuse(e.Path, seg.Start, err)
				}
				if g.live.set(loc) {
					g.res.LiveChunks++
				}
			}
			return nil
		}, refuse)
		if err != nil && !errors.Is(err, errRemoved) {
			return err
		}
	}
	return nil
}

var errRemoved = errors.New("removed meanwhile")

// packPlan is what is to be done with one pack.
type packPlan struct {
	kill   []pack.Chunk // chunks to declare dead
	live   []pack.Range // slots in use, ascending, touching ones merged
	punch  []pack.Range // what to give back
	chunks []pack.Chunk // live ones
	kvs    int64        // bytes of keys and values in the journal
}

// sweep gives back what is dead of pack n.
func (g *collection) sweep(n uint32) error {
	s := g.s
	s.sweepMu.Lock()
	p, err := g.plan(n)
	if err != nil || p == nil {
		s.sweepMu.Unlock()
		if err == nil {
			g.res.Kept = append(g.res.Kept, pack.Name(n))
		}
		return err
	}
	g.res.DeadChunks += int64(len(p.kill))
	if !g.o.DryRun && len(p.kill) > 0 {
		// Journalled as dead before the index forgets them, forgotten before the slots go: no crash leaves a location of a slot that is gone.
		if err = g.bury(n, p.kill); err != nil {
			s.sweepMu.Unlock()
			return err
		}
	}
	s.sweepMu.Unlock()
	drop := len(p.live) == 0 && n != s.packs.Active() && !s.hasPins(n)
	var allocated int64
	if len(p.punch) > 0 {
		if allocated, err = s.packs.Allocated(n, p.punch); err != nil {
			return err
		}
	}
	if drop {
		j, err := s.packs.JournalSize(n)
		if err != nil {
			return err
		}
		allocated += j
	}
	g.res.Reclaimable += allocated
	if g.o.DryRun {
		return nil
	}
	if drop {
		if err := g.drop(n); err != nil {
			return err
		}
		g.res.PacksGone++
	} else if allocated > 0 {
		if err := s.packs.Punch(n, p.punch); err != nil {
			return err
		}
	}
	g.res.Reclaimed += allocated
	if !drop && n != s.packs.Active() {
		return g.shrinkJournal(n, p)
	}
	return nil
}

// plan reads the journal of pack n; nil: it does not account for all of the pack, which is then left alone. Call with sweepMu held.
func (g *collection) plan(n uint32) (*packPlan, error) {
	s := g.s
	if n <= g.keepTo {
		return nil, nil
	}
	mark, err := s.db.mark(n)
	if err != nil {
		return nil, err
	}
	dead, err := s.deadSlots(n, 0)
	if err != nil {
		return nil, err
	}
	p := &packPlan{}
	listed := &bitset{}
	var gone []pack.Range
	end, bad, err := s.packs.Read(n, 0, func(r pack.Record) error {
		switch {
		case r.KV != nil:
			p.kvs += int64(len(r.KV.Key) + len(r.KV.Value))
		case r.Chunk != nil:
			c := *r.Chunk
			listed.set(c.Loc.Page)
			slot := pack.Range{Off: c.Loc.Offset(), Len: c.Loc.Slot()}
			switch {
			case dead[c.Loc.Page]:
				gone = append(gone, slot)
			case g.live[n].has(c.Loc.Page) || s.pinned(c.Loc):
				p.live = append(p.live, slot)
				p.chunks = append(p.chunks, c)
			default:
				gone = append(gone, slot)
				p.kill = append(p.kill, c)
			}
		}
		return nil
	})
	if err != nil {
		return nil, &Error{Class: Corrupt, Op: "gc", File: pack.JournalName(n), Err: err, Hint: damagedHint(s.dir)}
	}
	if s.judge(n, mark, end, bad); s.isAside(n) {
		return nil, nil
	}
	if !s.packs.Exists(n) {
		if len(p.live)+len(p.kill) == 0 {
			return p, nil // it was being dropped
		}
		s.keepAside(n, SetAside{File: filepath.Join(packsName, pack.JournalName(n)), Text: "damaged: its pack " + pack.Name(n) + " is gone"})
		return nil, nil
	}
	p.live = merge(p.live)
	s.pinMu.Lock()
	quiet := s.drafting == 0
	s.pinMu.Unlock()
	if used := g.live[n]; used != nil && quiet {
		if _, unlisted := used.missing(listed); unlisted {
			s.keepAside(n, SetAside{File: filepath.Join(packsName, pack.JournalName(n)), Text: "damaged: the journal does not list chunks that are in use"})
			return nil, nil
		}
	}
	if quiet && n != s.packs.Active() {
		// Nobody writes here: what is not live is dead, slots included that were written and never journalled.
		size, err := s.packs.Size(n)
		if err != nil {
			return nil, err
		}
		p.punch = complement(p.live, size)
	} else {
		p.punch = merge(gone)
	}
	return p, nil
}

func (s *Store) hasPins(n uint32) bool {
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	return s.drafting > 0 || s.pins[n] != nil
}

// bury journals chunks as dead and takes them out of the index.
func (g *collection) bury(n uint32, kill []pack.Chunk) error {
	s := g.s
	mark, err := s.packs.Kill(n, kill)
	if err != nil {
		return err
	}
	b := s.db.batch()
	for _, c := range kill {
		if loc, err := s.db.loc(c.ID); err == nil && loc == c.Loc {
			b.delete(chunkKey(c.ID))
		}
	}
	b.setMark(n, mark)
	return errors.Join(b.flush(), s.db.sync())
}

// keys calls fn for the key records of journal n that still count.
func (g *collection) keys(n uint32, fn func(pack.KV) error) error {
	s := g.s
	_, _, err := s.packs.Read(n, 0, func(r pack.Record) error {
		if r.KV == nil {
			return nil
		}
		seq, _, err := s.db.meta(r.KV.Key)
		if errors.Is(err, errMissing) || err == nil && seq != r.KV.Seq {
			return nil
		}
		if err != nil {
			return err
		}
		kv := *r.KV
		kv.Value = append([]byte(nil), kv.Value...)
		return fn(kv)
	})
	return err
}

// drop removes pack n, its keys that still count being journalled in the newest pack first.
func (g *collection) drop(n uint32) error {
	s := g.s
	var kvs []pack.KV
	bytes := 0
	flush := func() error {
		batch := kvs
		kvs, bytes = nil, 0
		return s.commitKVs(batch)
	}
	err := g.keys(n, func(kv pack.KV) error {
		kvs = append(kvs, kv)
		if bytes += len(kv.Value); bytes > sealBatch {
			return flush()
		}
		return nil
	})
	if err == nil && len(kvs) > 0 {
		err = flush()
	}
	if err != nil {
		return err
	}
	return s.dropPack(n)
}

// shrinkJournal rewrites a journal of which more than half is about things long gone.
func (g *collection) shrinkJournal(n uint32, p *packPlan) error {
	s := g.s
	size, err := s.packs.JournalSize(n)
	if err != nil || size < 1<<20 {
		return err
	}
	const record = 1 + chunk.IDSize + pack.LocSize
	need := int64(len(p.chunks)) * record
	if err := g.keys(n, func(kv pack.KV) error { need += int64(len(kv.Key) + len(kv.Value)); return nil }); err != nil {
		return err
	}
	if need > size/2 {
		return nil
	}
	var kvs []pack.KV
	if err := g.keys(n, func(kv pack.KV) error { kvs = append(kvs, kv); return nil }); err != nil {
		return err
	}
	now, err := s.rewriteJournal(n, p.chunks, kvs)
	if err != nil {
		return err
	}
	g.res.Reclaimed += max(0, size-now)
	g.res.Reclaimable += max(0, size-now)
	return nil
}

// merge sorts ranges and joins those that touch.
func merge(in []pack.Range) []pack.Range {
	slices.SortFunc(in, func(a, b pack.Range) int { return int(min(1, max(-1, a.Off-b.Off))) })
	var out []pack.Range
	for _, r := range in {
		if k := len(out) - 1; k >= 0 && r.Off <= out[k].Off+out[k].Len {
			out[k].Len = max(out[k].Len, r.Off+r.Len-out[k].Off)
		} else {
			out = append(out, r)
		}
	}
	return out
}

// complement gives what merged ranges leave of [0, size).
func complement(in []pack.Range, size int64) []pack.Range {
	var out []pack.Range
	var pos int64
	for _, r := range in {
		if r.Off > pos {
			out = append(out, pack.Range{Off: pos, Len: r.Off - pos})
		}
		pos = max(pos, r.Off+r.Len)
	}
	if end := (size + chunk.PageSize - 1) &^ (chunk.PageSize - 1); end > pos {
		out = append(out, pack.Range{Off: pos, Len: end - pos})
	}
	return out
}
