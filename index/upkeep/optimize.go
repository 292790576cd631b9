package upkeep

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/pageset"
)

// This file stores chunks anew smaller, while nobody waits.
//
// A dump is stored as fast as the process can be read: s2, or not compressed at all. Optimize reads such chunks again,
// pack by pack in the order of their slots, and encodes them with the strongest level of zstd. Batches are independent
// of each other, and after each the store is whole; an optimization that was interrupted begins anew and finds less to
// do.
//
//  1. A chunk is read, decoded and held against its id. What is damaged is left to Verify.
//  2. The smaller form goes into a slot of its own that nobody knows of (pack.Set.Place).
//  3. A commit syncs it. It also records how far up chunks have moved (chunks.MovedKey).
//  4. The slot is read back past the page cache, and must decode to the same id.
//  5. The next commit journals it and points the index to it. Packs are numbered upwards, so a rebuilt index takes
//     the later slot, too. A crash before that leaves a slot that no journal lists, one after it two sound slots.
//  6. Drafts that pin the old slot pin the new one. Locations that readers know are looked up again (CountMoves); a
//     reader of the old slot looks the chunk up once more before it reports damage (ReadMoved). All that is package
//     chunks' (Adopt).
//
// The old slot is dead to the next collection, by the rules of all others. gcMu is held from 1 to 6 of a batch, so
// none runs meanwhile, and Verify neither.

// Batches are small: gc and verify wait for one, and what the two commits of one cost is nothing beside the
// encoding of it (10 to 60 MB/s).
const (
	optimizeBatch = 4 << 20         // bytes read
	optimizePause = 1 * time.Second // between batches while somebody else is at work
)

// movedTo gives the number of the last pack that Optimize put chunks into; 0 if there is none.
func (s *Jobs) movedTo() (uint32, error) {
	_, payload, err := s.chunks.DB.Meta(chunks.MovedKey)
	switch {
	case errors.Is(err, keys.ErrMissing):
		return 0, nil
	case errors.Is(err, keys.ErrDamaged) || err == nil && len(payload) != 4:
		return pack.MaxNumber, nil
	case err != nil:
		return 0, err
	}
	return binary.LittleEndian.Uint32(payload), nil
}

// optimization is the state of one run of Optimize.
type optimization struct {
	s       *Jobs
	o       OptimizeOptions
	tight   *chunk.Tight
	scratch []byte
	res     OptimizeResult
	done    int64
	total   int64
	began   time.Time
	read    int64 // bytes since began
}

// Optimize stores chunks of sealed checkpoints anew smaller that were stored fast. It gives no space back, GC does. It
// works on one processor, and a batch a second while a draft is open or o.Busy says so. It does nothing while a
// manifest cannot be read, for nobody knows which chunks that needs.
func (s *Jobs) Optimize(ctx context.Context, o OptimizeOptions) (OptimizeResult, error) {
	if err := s.chunks.MayWrite("optimize"); err != nil && !o.DryRun {
		return OptimizeResult{}, err
	}
	ctx, done := s.during(ctx)
	defer done()
	if o.Progress == nil {
		o.Progress = func(int64, int64) {}
	}
	if o.Busy == nil {
		o.Busy = func() bool { return false }
	}
	z := &optimization{s: s, o: o}
	var err error
	if z.tight, err = chunk.NewTight(s.o.MaxChunk); err != nil {
		return z.res, fault.Classify("optimize", err)
	}
	defer z.tight.Close()
	z.scratch = make([]byte, 0, chunk.MaxEncoded(s.o.MaxChunk))
	packs, live, err := z.choose(ctx)
	if err != nil {
		return z.res, err
	}
	for _, n := range packs {
		if size, err := s.chunks.Packs.Size(n); err == nil {
			z.total += size
		}
	}
	z.began = time.Now()
	defer s.chunks.Packs.Trim()
	for _, n := range packs {
		if err := z.pack(ctx, n, live[n]); err != nil {
			return z.res, fault.Classify("optimize", err)
		}
	}
	o.Progress(z.total, z.total)
	return z.res, nil
}

// choose finds what sealed checkpoints use, and the packs that hold it and may give something back.
func (z *optimization) choose(ctx context.Context) (packs []uint32, live pageset.Slots, err error) {
	s := z.s
	if err := s.gcMu.Acquire(ctx, 1); err != nil {
		return nil, nil, err
	}
	defer s.gcMu.Release(1)
	if err := s.chunks.Commit(nil); err != nil {
		return nil, nil, err
	}
	g := collection{s: s, live: pageset.Slots{}, wanted: map[chunk.ID]bool{}, unclear: map[string]bool{}}
	if err := g.findLive(ctx); err != nil {
		return nil, nil, err
	}
	if err := g.damage(); err != nil {
		e := err.(*fault.Error)
		e.Op = "optimize"
		return nil, nil, e
	}
	all, err := s.chunks.Packs.Packs()
	if err != nil {
		return nil, nil, fault.Classify("optimize", err)
	}
	keepTo, err := s.keepTo()
	if err != nil {
		return nil, nil, fault.Classify("optimize", err)
	}
	for _, n := range all {
		if g.live[n] != nil && n > keepTo && !s.chunks.Packs.Condemned(n) && !s.chunks.Aside.Has(n) &&
			s.chunks.Packs.Exists(n) {
			packs = append(packs, n)
		}
	}
	return packs, g.live, nil
}

// candidates gives the chunks of pack n that may become smaller, in the order of their slots. A collection may have
// given the pack back since it was chosen: then there are none. gcMu keeps one from doing so meanwhile.
func (z *optimization) candidates(ctx context.Context, n uint32, live *pageset.Pages) ([]pack.Chunk, error) {
	if err := z.s.gcMu.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer z.s.gcMu.Release(1)
	if !z.s.chunks.Packs.Exists(n) {
		return nil, nil
	}
	var list []pack.Chunk
	_, _, err := z.s.chunks.Packs.Read(n, 0, func(r pack.Record) error {
		if c := r.Chunk; c != nil && live.Has(c.Loc.Page) && (c.Loc.Codec == chunk.S2 || c.Loc.Codec == chunk.Raw) &&
			c.Loc.Slot() > chunk.PageSize {
			list = append(list, *c)
		}
		return nil
	})
	slices.SortFunc(list, func(a, b pack.Chunk) int { return int(a.Loc.Page) - int(b.Loc.Page) })
	return list, err
}

// pack goes through one pack.
func (z *optimization) pack(ctx context.Context, n uint32, live *pageset.Pages) error {
	list, err := z.candidates(ctx, n, live)
	if err != nil {
		return err
	}
	z.res.Chunks += int64(len(list))
	end := z.done
	if size, err := z.s.chunks.Packs.Size(n); err == nil {
		end += size
	}
	for len(list) > 0 {
		k, bytes := 1, list[0].Loc.Slot()
		for k < len(list) && bytes+list[k].Loc.Slot() <= optimizeBatch {
			bytes += list[k].Loc.Slot()
			k++
		}
		if err := z.yield(ctx, bytes); err != nil {
			return err
		}
		if err := z.batch(ctx, list[:k]); err != nil {
			return err
		}
		z.done = min(end, z.done+bytes)
		z.o.Progress(z.done, z.total)
		list = list[k:]
	}
	z.done = end
	return ctx.Err()
}

// yield waits until the next bytes may be read.
func (z *optimization) yield(ctx context.Context, bytes int64) error {
	var wait time.Duration
	if z.o.Rate > 0 {
		wait = time.Duration(float64(z.read)/float64(z.o.Rate)*float64(time.Second)) - time.Since(z.began)
	}
	z.read += bytes
	if z.s.roots.Writers() > 0 || z.o.Busy() {
		wait = max(wait, optimizePause)
	}
	if wait <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// batch stores some chunks anew.
func (z *optimization) batch(ctx context.Context, list []pack.Chunk) error {
	s := z.s
	if err := s.gcMu.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.gcMu.Release(1)
	var moves []chunks.Move
	for _, c := range list {
		if err := ctx.Err(); err != nil {
			return err // what was placed belongs to nobody
		}
		m, err := z.place(c)
		if err != nil {
			return err
		}
		if m == nil {
			z.res.Skipped++
			continue
		}
		moves = append(moves, *m)
	}
	if !z.o.DryRun && len(moves) > 0 {
		s.Hooks.Placed.Run()
		moved, err := s.commitMoves(moves)
		if err != nil {
			return err
		}
		z.res.Skipped += int64(len(moves) - len(moved))
		moves = moved
	}
	for _, m := range moves {
		z.res.Rewritten++
		z.res.Before += m.From.Slot()
		z.res.After += m.To.Slot()
	}
	return nil
}

// place writes the smaller form of a chunk into a slot of its own; nil where there is none.
func (z *optimization) place(c pack.Chunk) (*chunks.Move, error) {
	s := z.s
	if now, err := s.chunks.DB.Loc(c.ID); err != nil || now != c.Loc || s.chunks.IsDamaged(c.ID, c.Loc) {
		return nil, nil // given back, or stored anew since
	}
	content, err := s.readSound(c)
	if err != nil {
		z.res.Damaged++
		s.chunks.Unreadable(c.ID, c.Loc, err)
		return nil, nil
	}
	defer s.chunks.Arena.Put(content)
	out := z.tight.Encode(content, c.Loc.Codec, int(c.Loc.Stored), z.scratch)
	if out == nil {
		return nil, nil
	}
	m := &chunks.Move{ID: c.ID, From: c.Loc, To: pack.Loc{Stored: uint32(len(out)), Raw: c.Loc.Raw, Codec: chunk.Zstd}}
	if !z.o.DryRun {
		m.To, err = s.chunks.Packs.Place(c.ID, out, int(c.Loc.Raw), chunk.Zstd)
	}
	return m, err
}

// readSound gives the content of a slot, past the page cache, if it is what its id says. The buffer is of the arena.
func (s *Jobs) readSound(c pack.Chunk) ([]byte, error) {
	content, err := s.chunks.ReadSlot(c, true)
	if err == nil && s.chunks.Packs.Coder().Sum(content) != c.ID {
		s.chunks.Arena.Put(content)
		err = fmt.Errorf("pack %s at %d: %w: the content is not what its id says", pack.Name(c.Loc.Pack),
			c.Loc.Offset(), pack.ErrCorrupt)
	}
	return content, err
}

// commitMoves makes placed slots the places of their chunks, and gives the moves that were made.
func (s *Jobs) commitMoves(moves []chunks.Move) ([]chunks.Move, error) {
	last, err := s.movedTo()
	if err != nil {
		return nil, err
	}
	var puts []chunks.Put
	for _, m := range moves {
		if m.To.Pack > last {
			last = m.To.Pack
			puts = []chunks.Put{{Key: chunks.MovedKey, Payload: binary.LittleEndian.AppendUint32(nil, last)}}
		}
	}
	if err := s.chunks.Commit(puts); err != nil { // syncs the slots
		return nil, err
	}
	var sound []chunks.Move
	for _, m := range moves {
		content, err := s.readSound(pack.Chunk{ID: m.ID, Loc: m.To})
		if err != nil {
			s.log.Error("a chunk that was stored anew cannot be read back; the old one stays", "chunk", m.ID.String(),
				"err", err)
			continue
		}
		s.chunks.Arena.Put(content)
		sound = append(sound, m)
	}
	s.Hooks.Checked.Run()
	moved, err := s.chunks.Adopt(sound)
	if err != nil {
		return nil, err
	}
	s.Hooks.Moved.Run()
	return moved, nil
}
