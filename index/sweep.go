package index

import (
	"errors"
	"path/filepath"
	"slices"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// packPlan is what is to be done with one pack.
type packPlan struct {
	dead  []pack.Range // slots that the journal calls dead, ascending, touching ones merged
	kill  []pack.Chunk // chunks to declare dead
	live  []pack.Range // slots that stay, likewise
	punch []pack.Range // what to give back
	drop  bool         // nothing of the pack is needed but its keys
	leave bool         // the journal does not account for all of the pack
}

// sweep gives back what is dead of pack n.
func (g *collection) sweep(n uint32) error {
	p, journal, err := g.bury(n)
	if err != nil {
		return err
	}
	if p.leave {
		g.res.Kept = append(g.res.Kept, pack.Name(n))
		return nil
	}
	// From here on nobody is told of the slots in p.punch any more: they are dead, or were never journalled.
	s := g.s
	g.res.DeadChunks += int64(len(p.kill))
	var allocated int64
	if len(p.punch) > 0 {
		if allocated, err = s.packs.Allocated(n, p.punch); err != nil {
			return err
		}
	}
	if p.drop {
		allocated += journal
	}
	g.res.Reclaimable += allocated
	if g.o.DryRun {
		return nil
	}
	switch {
	case p.drop:
		if err := g.drop(n); err != nil {
			return err
		}
		g.res.PacksGone++
	case allocated > 0:
		if err := s.packs.Punch(n, p.punch); err != nil {
			return err
		}
	}
	g.res.Reclaimed += allocated
	if !p.drop {
		return g.shrinkJournal(n)
	}
	return nil
}

// bury makes the plan for pack n, journals as dead what it kills, and takes that out of the index. No chunk is looked up
// or written meanwhile, and none is on its way into a journal or into the index.
func (g *collection) bury(n uint32) (p *packPlan, journal int64, err error) {
	s := g.s
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	if !g.o.DryRun {
		if err := s.indexAll(); err != nil {
			return nil, 0, err
		}
	}
	s.sweepMu.Lock()
	defer s.sweepMu.Unlock()
	if p, err = g.plan(n); err != nil {
		return nil, 0, err
	}
	if journal, err = s.packs.JournalSize(n); err != nil || g.o.DryRun || len(p.kill) == 0 {
		return p, journal, err
	}
	// Journalled as dead before the index forgets them, forgotten before the slots go: no crash leaves a location of a
	// slot that is gone.
	mark, err := s.packs.Kill(n, p.kill)
	if err != nil {
		// The journal may call them dead at the next open, or not: nothing is to be built on them.
		s.avoid(p.kill)
		return nil, 0, err
	}
	s.buried = append(s.buried, p.kill...)
	if err := s.indexCommitted(pack.Committed{Marks: map[uint32]int64{n: mark}}, nil); err != nil {
		s.avoid(p.kill)
		return nil, 0, err
	}
	return p, mark, s.db.Sync()
}

// plan reads the journal of pack n. Call with commitMu and sweepMu held.
func (g *collection) plan(n uint32) (*packPlan, error) {
	s := g.s
	p := &packPlan{leave: n <= g.keepTo || s.packs.Condemned(n)}
	if p.leave {
		return p, nil
	}
	mark, err := s.db.Mark(n)
	if err != nil {
		return nil, err
	}
	settled := !s.packs.Unsettled(n)
	dead, err := s.deadSlots(n, 0)
	if err != nil {
		return nil, g.journalError(n, err)
	}
	pins := s.pinned(n)
	listed := &bitset{}
	buriedAlive := false
	end, bad, err := s.packs.Read(n, 0, func(r pack.Record) error {
		if r.Chunk == nil {
			return nil
		}
		c := *r.Chunk
		slot := pack.Range{Off: c.Loc.Offset(), Len: c.Loc.Slot()}
		switch {
		case dead[c.Loc.Page]:
			p.dead = append(p.dead, slot)
			buriedAlive = buriedAlive || g.live[n].has(c.Loc.Page)
			return nil
		case g.live[n].has(c.Loc.Page) || pins.has(c.Loc.Page) || g.spared(n, c.ID):
			p.live = append(p.live, slot)
		default:
			p.kill = append(p.kill, c)
			p.punch = append(p.punch, slot)
		}
		listed.set(c.Loc.Page)
		return nil
	})
	if err != nil {
		return nil, g.journalError(n, err)
	}
	s.judge(n, mark, end, bad)
	aside := func(why string) {
		s.keepAside(n, SetAside{File: filepath.Join(packsName, pack.JournalName(n)), Text: "damaged: " + why})
	}
	exists := s.packs.Exists(n)
	if used := g.live[n]; used != nil && settled {
		if _, missing := used.missing(listed); missing {
			aside("the journal does not list chunks that are in use")
		}
	}
	if buriedAlive {
		aside("the journal calls a slot dead that is in use")
	}
	if !exists && len(p.live)+len(p.kill) > 0 {
		aside("its pack " + pack.Name(n) + " is gone")
	}
	if s.isAside(n) {
		return &packPlan{leave: true}, nil
	}
	if !exists { // it was being dropped
		return &packPlan{drop: settled}, nil
	}
	p.dead, p.live = merge(p.dead), merge(p.live)
	if settled && n > g.horizon {
		// Nobody writes here, and every slot that was written for anybody is in the journal: what is not live is
		// nothing, slots included that a crash kept from being journalled.
		size, err := s.packs.Size(n)
		if err != nil {
			return nil, err
		}
		p.punch = complement(p.live, size)
		p.drop = len(p.live) == 0
	} else {
		p.punch = merge(append(p.punch, p.dead...))
	}
	return p, nil
}

// avoid sees to it that nobody is told of these chunks while they are in the index, as if they were damaged.
func (s *Store) avoid(chunks []pack.Chunk) {
	s.damage.mu.Lock()
	defer s.damage.mu.Unlock()
	for _, c := range chunks {
		s.damage.doomed[c.ID] = c.Loc
	}
}

// spared says whether a chunk of pack n is to be kept though no manifest that can be read leads to its slot.
func (g *collection) spared(n uint32, id chunk.ID) bool {
	if n <= g.horizon || g.wanted[id] {
		return true
	}
	// What an unclear checkpoint uses may have been damaged, and stored anew beyond the horizon.
	return g.horizon > 0 && g.s.metDamage(id)
}

func (g *collection) journalError(n uint32, err error) error {
	return &fault.Error{Class: fault.Corrupt, Op: "gc", File: pack.JournalName(n), Err: err, Hint: fault.RepairHint(g.s.dir)}
}

// keys calls fn for the key records of journal n that still count. Call with commitMu held.
func (g *collection) keys(n uint32, fn func(pack.KV) error) error {
	s := g.s
	_, _, err := s.packs.Read(n, 0, func(r pack.Record) error {
		if r.KV == nil {
			return nil
		}
		seq, _, err := s.db.Meta(r.KV.Key)
		if g.unclear[manifest.OwnerOf(r.KV.Key)] {
			err = nil // what the index lacks of it may be here alone
		} else if errors.Is(err, keys.ErrMissing) || err == nil && seq != r.KV.Seq {
			return nil
		}
		// What the index holds damaged may be whole here.
		if err != nil && !errors.Is(err, keys.ErrDamaged) {
			return err
		}
		kv := *r.KV
		kv.Value = append([]byte(nil), kv.Value...)
		return fn(kv)
	})
	return err
}

// drop removes pack n, its keys that still count being journalled in the newest pack first. No commit comes between: it
// could write a key anew that is just being moved.
func (g *collection) drop(n uint32) error {
	s := g.s
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	if err := s.indexAll(); err != nil {
		return err
	}
	var kvs []pack.KV
	bytes := 0
	move := func() error {
		batch := kvs
		kvs, bytes = nil, 0
		if len(batch) == 0 {
			return nil
		}
		call(s.hooks.moving)
		s.takeLosses()
		done, err := s.packs.Commit(batch)
		if err != nil {
			s.commitFailed(batch, done.Lost, err)
			return err
		}
		return s.indexCommitted(done, nil) // it has these keys
	}
	err := g.keys(n, func(kv pack.KV) error {
		kvs = append(kvs, kv)
		if bytes += len(kv.Value); bytes > sealBatch {
			return move()
		}
		return nil
	})
	if err == nil {
		err = move()
	}
	if err != nil {
		return err
	}
	return s.dropPack(n)
}

// shrinkJournal rewrites a journal of which more than half is about things long gone. It reads the journal anew, with
// commits held up: one may have written to it since the plan was made.
func (g *collection) shrinkJournal(n uint32) error {
	s := g.s
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	size, err := s.packs.JournalSize(n)
	if err != nil || size < s.o.Tuning.ShrinkJournal || n == s.packs.Active() {
		return err
	}
	if err := s.indexAll(); err != nil {
		return err
	}
	dead, err := s.deadSlots(n, 0)
	if err != nil {
		return err
	}
	const record = 1 + chunk.IDSize + pack.LocSize
	var need int64
	var chunks []pack.Chunk
	_, bad, err := s.packs.Read(n, 0, func(r pack.Record) error {
		if c := r.Chunk; c != nil && !dead[c.Loc.Page] {
			chunks = append(chunks, *c)
			need += record
		}
		return nil
	})
	if err != nil || len(bad) > 0 {
		return err // the next collection tells of damage
	}
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
	if s.hooks.rewriting != nil {
		s.hooks.rewriting(n)
	}
	now, err := s.rewriteJournal(n, chunks, kvs)
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
