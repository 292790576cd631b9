package repack

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"hash/fnv"
	"io"
	"maps"
	"slices"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/index/remote/object"
)

// nonceOf gives the nonce of the draft that wrote a pack.
func nonceOf(p catalog.Pack) string { return p.ID[:min(len(p.ID), 32)] }

// pagesOf is a set of pages of a pack: a bit for each.
type pagesOf []uint64

func (b *pagesOf) add(page uint32) (fresh bool) {
	at, bit := int(page/64), uint64(1)<<(page%64)
	for len(*b) <= at {
		*b = append(*b, 0)
	}
	fresh = (*b)[at]&bit == 0
	(*b)[at] |= bit
	return fresh
}

func (b pagesOf) has(page uint32) bool {
	return int(page/64) < len(b) && b[page/64]&(1<<(page%64)) != 0
}

// look reads the roots, and finds the packs that may be less than half in use: those that the root of their own draft
// does not list, and no pending root claims or writes.
func (r *run) look(ctx context.Context) error {
	var all []catalog.Record
	own, claimed, drafts := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for rec, err := range r.o.Catalog.All(ctx) {
		if err != nil {
			return err
		}
		switch rec.State {
		case catalog.Pending:
			drafts[rec.Nonce] = true
			for _, p := range rec.Packs {
				claimed[p.ID] = true
			}
		case catalog.Sealed:
			all = append(all, rec)
			for _, p := range rec.Packs {
				if nonceOf(p) == rec.Nonce {
					own[p.ID] = true
				}
			}
		}
	}
	for _, rec := range all {
		list, first, err := r.o.List(rec)
		k := &rooted{Record: rec, list: list, first: first, stays: err != nil || list.Size > mostList}
		for _, p := range rec.Packs {
			_, err := object.ParseName(p.ID)
			if own[p.ID] || claimed[p.ID] || drafts[nonceOf(p)] || p == list || err != nil || p.Size > object.MaxPack {
				continue
			}
			s := r.suspect[p.ID]
			if s == nil && len(r.suspect) == mostPacks {
				continue
			}
			if s == nil {
				s = &suspect{Pack: p}
				r.suspect[p.ID] = s
			}
			s.roots, k.packs = append(s.roots, k), append(k.packs, s)
			s.stays = s.stays || k.stays
		}
		if len(k.packs) > 0 {
			r.roots = append(r.roots, k)
		}
	}
	return nil
}

// sum stands for the lists that tell of a pack.
func (s *suspect) sum() uint64 {
	h := fnv.New64a()
	for _, k := range s.roots { // in the order of their names
		h.Write([]byte(k.list.ID))
	}
	return binary.BigEndian.Uint64(h.Sum(nil))
}

// weigh finds how much of the packs is in use, as far as that is not remembered. A root that lists packs of which its
// list does not speak was left by a run that did not end, and is put right.
func (r *run) weigh(ctx context.Context) error {
	full := map[string]uint64{}
	for id, s := range r.suspect {
		if sum, ok := r.o.Full[id]; ok && sum == s.sum() {
			full[id], s.stays = sum, true
		}
	}
	for _, k := range r.roots {
		if k.stays || !slices.ContainsFunc(k.packs, func(s *suspect) bool { return !s.stays }) {
			continue
		}
		if r.report.Read > r.o.Most/2 { // a later run goes on: what this one found to be in use is remembered
			for _, s := range k.packs {
				s.stays = true
			}
			continue
		}
		err := r.weighList(ctx, k)
		if err != nil && !passes(err) {
			return err
		}
		if err != nil {
			r.o.Logger.Warn("packs of a checkpoint of the remote store are left alone", "checkpoint", k.Name,
				"err", err)
			for _, s := range k.packs {
				s.stays = true
			}
		}
	}
	for id, s := range r.suspect {
		if !s.stays && s.alive*2 >= s.Size {
			full[id], s.stays = s.sum(), true
		}
	}
	if r.o.Full != nil {
		clear(r.o.Full)
		maps.Copy(r.o.Full, full)
	}
	return nil
}

func (r *run) weighList(ctx context.Context, k *rooted) error {
	now, err := r.find(ctx, k)
	if err != nil {
		return err
	}
	var packs []*suspect
	speaks := map[string]bool{k.list.ID: true}
	err = object.Decode(r.listOf(ctx, now, k), r.o.Store, object.Visitor{
		Coder: r.o.Coder,
		Pack: func(_ uint32, p object.PackRef) error {
			id := p.Name.String()
			speaks[id] = true
			packs = append(packs, r.suspect[id])
			return ctx.Err()
		},
		Chunk: func(c pack.Chunk) error {
			if s := packs[c.Loc.Pack-1]; s != nil && s.used.add(c.Loc.Page) {
				s.alive += c.Loc.Slot()
			}
			return nil
		},
	})
	if err != nil || !slices.ContainsFunc(k.Packs, func(p catalog.Pack) bool { return !speaks[p.ID] }) {
		return err
	}
	for _, s := range k.packs {
		if !speaks[s.ID] {
			s.stays = true
		}
	}
	if r.o.DryRun {
		return nil
	}
	if err := now.Trim(ctx, func(p catalog.Pack) bool { return speaks[p.ID] }); err != nil {
		return err
	}
	now, err = r.o.Catalog.Find(ctx, k.Name)
	if err == nil && now.Packs[len(now.Packs)-1] != k.list {
		err = catalog.ErrMoved
	}
	if err == nil {
		k.Record = now.Record
	}
	return err
}

// listOf gives the list of a checkpoint as it is now.
func (r *run) listOf(ctx context.Context, now *catalog.Checkpoint, k *rooted) object.Source {
	const atOnce = 8 << 20
	in := io.NewSectionReader(&reader{ctx: ctx, k: now, p: k.list, read: &r.report.Read}, 0, k.list.Size)
	return object.Source{Reader: bufio.NewReaderSize(in, int(min(k.list.Size+1, atOnce))),
		First: k.first, Lists: Listed(now.Packs)}
}

// Listed gives what says whether a pack is one of these, those of a root.
func Listed(packs []catalog.Pack) func(object.PackRef) bool {
	in := make(map[catalog.Pack]bool, len(packs))
	for _, p := range packs {
		in[p] = true
	}
	return func(p object.PackRef) bool { return in[catalog.Pack{ID: p.Name.String(), Size: p.Size}] }
}

// choose gives the packs that this run deals with, those first of which least is in use.
func (r *run) choose() []*suspect {
	var few, chosen []*suspect
	for _, s := range r.suspect {
		if !s.stays {
			few = append(few, s)
		}
	}
	slices.SortFunc(few, func(a, b *suspect) int {
		return cmp.Or(cmp.Compare(a.alive*b.Size, b.alive*a.Size), cmp.Compare(a.ID, b.ID))
	})
	listed := map[*rooted]bool{}
	left, pages := r.o.Most-r.report.Read, int64(mostChunks)
	for _, s := range few {
		cost := 2 * s.alive
		for _, k := range s.roots {
			if !listed[k] {
				cost += 2 * k.list.Size
			}
		}
		// A chunk takes a page or more.
		if cost > left || s.alive/chunk.PageSize > pages {
			r.report.Left++
			continue
		}
		left, pages = left-cost, pages-s.alive/chunk.PageSize
		for _, k := range s.roots {
			listed[k] = true
		}
		s.chosen, chosen = true, append(chosen, s)
	}
	return chosen
}
