package upkeep

import (
	"path/filepath"
	"slices"

	"github.com/gpucr/gpucr-fs/index/aside"
	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/pageset"
)

// packPlan is what is to be done with one pack.
type packPlan struct {
	dead  []pack.Range // slots that the journal calls dead, ascending, touching ones merged
	kill  []pack.Chunk // chunks to declare dead
	live  []pack.Range // slots that stay, likewise
	punch []pack.Range // what to give back
	tail  bool         // the last range of punch lies behind the last slot that stays
	still bool         // nobody writes to the pack any more
	drop  bool         // nothing of the pack is needed but its keys
	leave bool         // the journal does not account for all of the pack
}

// sweep gives back what is dead of pack n.
func (g *collection) sweep(n uint32) error {
	var p *packPlan
	journal, err := g.s.chunks.MarkDead(n, g.o.DryRun, func() (kill []pack.Chunk, err error) {
		if p, err = g.plan(n); err != nil {
			return nil, err
		}
		return p.kill, nil
	})
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
		if allocated, err = s.chunks.Packs.Allocated(n, p.punch); err != nil {
			return err
		}
	}
	if p.drop {
		allocated += journal
	}
	if p.still {
		behind, err := s.chunks.Packs.CutBehind(n, g.o.DryRun)
		if err != nil {
			return err
		}
		g.res.Reclaimable += behind
		if !g.o.DryRun {
			g.res.Reclaimed += behind
		}
	}
	g.res.Reclaimable += allocated
	if g.o.DryRun {
		return nil
	}
	switch {
	case p.drop:
		if err := s.chunks.DropPack(n, g.unclear); err != nil {
			return err
		}
		g.res.PacksGone++
	case allocated > 0 || p.tail:
		// Not every file system can tell how much of the tail was allocated ahead.
		if err := s.chunks.Packs.Punch(n, p.punch); err != nil {
			return err
		}
	}
	g.res.Reclaimed += allocated
	if p.drop {
		return nil
	}
	gained, err := s.chunks.ShrinkJournal(n, g.unclear)
	g.res.Reclaimed += gained
	g.res.Reclaimable += gained
	return err
}

// plan reads the journal of pack n. Call with commits and look-ups held up.
func (g *collection) plan(n uint32) (*packPlan, error) {
	s := g.s
	p := &packPlan{leave: n <= g.keepTo || s.chunks.Packs.Condemned(n)}
	if p.leave {
		return p, nil
	}
	durable, err := s.chunks.DB.Durable(n)
	if err != nil {
		return nil, err
	}
	settled := !s.chunks.Packs.Unsettled(n)
	dead, err := s.chunks.DeadSlots(n, 0)
	if err != nil {
		return nil, g.unreadable(pack.JournalName(n), err)
	}
	pins := s.chunks.Pinned(n)
	listed := &pageset.Pages{}
	usedDead := false
	end, bad, err := s.chunks.Packs.Read(n, 0, func(r pack.Record) error {
		if r.Chunk == nil {
			return nil
		}
		c := *r.Chunk
		slot := pack.Range{Off: c.Loc.Offset(), Len: c.Loc.Slot()}
		switch {
		case dead[c.Loc.Page]:
			p.dead = append(p.dead, slot)
			usedDead = usedDead || g.live[n].Has(c.Loc.Page)
			return nil
		case g.live[n].Has(c.Loc.Page) || pins.Has(c.Loc.Page) || g.spared(n, c):
			p.live = append(p.live, slot)
		default:
			p.kill = append(p.kill, c)
			p.punch = append(p.punch, slot)
		}
		listed.Set(c.Loc.Page)
		return nil
	})
	if err != nil {
		return nil, g.unreadable(pack.JournalName(n), err)
	}
	s.chunks.Aside.Judge(n, durable, end, bad)
	aside := func(why string) {
		s.chunks.Aside.Keep(n,
			aside.Entry{File: filepath.Join(chunks.PacksFolder, pack.JournalName(n)), Text: "damaged: " + why})
	}
	exists := s.chunks.Packs.Exists(n)
	if used := g.live[n]; used != nil && settled {
		if _, missing := used.Missing(listed); missing {
			aside("the journal does not list chunks that are in use")
		}
	}
	if usedDead {
		aside("the journal calls a slot dead that is in use")
	}
	if why, err := s.chunks.Packs.Missing(n); err != nil {
		return nil, err
	} else if why != "" && (exists || len(p.live)+len(p.kill) > 0) {
		aside("pack " + pack.Name(n) + ": " + why)
	}
	if s.chunks.Aside.Has(n) {
		return &packPlan{leave: true}, nil
	}
	if !exists { // it was being dropped
		return &packPlan{drop: settled}, nil
	}
	p.dead, p.live = merge(p.dead), merge(p.live)
	if settled && n > g.horizon {
		// Nobody writes here, and every slot that was written for anybody is in the journal: what is not live is
		// nothing, slots included that a crash kept from being journalled.
		size, err := s.chunks.Packs.Size(n)
		if err != nil {
			return nil, err
		}
		p.punch = complement(p.live, size)
		p.tail = len(p.live) > 0 && len(p.punch) > 0 && p.punch[len(p.punch)-1].Off > p.live[len(p.live)-1].Off
		p.drop = len(p.live) == 0
		p.still = true
	} else {
		p.punch = merge(append(p.punch, p.dead...))
	}
	return p, nil
}

// spared says whether a chunk of pack n is to be kept though no manifest that can be read leads to its slot.
func (g *collection) spared(n uint32, c pack.Chunk) bool {
	if n <= g.horizon || g.wanted[c.ID] || g.s.chunks.HasLost(c) {
		return true
	}
	// What an unclear checkpoint uses may have been damaged, and stored anew beyond the horizon.
	return g.horizon > 0 && g.s.chunks.KnownDamaged(c.ID)
}

// unreadable is the error of a file of the store that could not be read.
func (g *collection) unreadable(file string, err error) error {
	return fault.Unreadable("gc", g.s.o.Dir, file, err)
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
