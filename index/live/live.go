// Package live tells whether a chunk is alive where the index shows it: what the journal of the pack says counts. The
// index may show where a chunk was before, and the slot there may have been given back, or be another chunk's.
//
// A journal is read when a pack is asked about for the first time, and read on when it has grown since. What is kept is
// eight bytes for each slot.
//
// Lock order: slots.mu, and then pack's own locks or Slots.mu.
package live

import (
	"cmp"
	"slices"
	"sync"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// maxKept is how many slots are kept, of all packs together, at about which those of some are forgotten: 64 MiB.
const maxKept = 8 << 20

// Slots are the live slots of packs. It is safe for concurrent use.
type Slots struct {
	packs *pack.Set
	max   int

	mu   sync.Mutex
	of   map[uint32]*slots
	kept int // in all of them
}

// slots are those of one pack. mu is held while the journal is read.
type slots struct {
	kept int // guarded by Slots.mu

	mu   sync.Mutex
	read int64  // bytes of the journal
	live []slot // in order
}

// slot is a page of the pack, and the sum of the chunk whose slot begins there.
type slot struct{ page, sum uint32 }

// New gives the live slots of these packs.
func New(packs *pack.Set) *Slots {
	return &Slots{packs: packs, max: maxKept, of: map[uint32]*slots{}}
}

// Has says whether the journal of the pack has this chunk alive at loc. It says no where the journal cannot be read.
func (s *Slots) Has(id chunk.ID, loc pack.Loc) bool {
	p := s.pack(loc.Pack)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.has(id, loc) {
		return true
	}
	size, err := s.packs.JournalSize(loc.Pack)
	if err != nil || size <= p.read {
		return false
	}
	err = p.readOn(s.packs, loc.Pack)
	s.count(loc.Pack, p, len(p.live))
	return err == nil && p.has(id, loc)
}

// Forget is called when the journal of pack n has been written anew, calls more chunks dead, or is gone.
func (s *Slots) Forget(n uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.of[n]; p != nil {
		s.kept -= p.kept
		delete(s.of, n)
	}
}

func (s *Slots) pack(n uint32) *slots {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.of[n]
	if p == nil {
		for other, q := range s.of {
			if s.kept < s.max {
				break
			}
			s.kept -= q.kept
			delete(s.of, other)
		}
		p = &slots{}
		s.of[n] = p
	}
	return p
}

// count notes that p, which are those of pack n unless they have been forgotten, has so many.
func (s *Slots) count(n uint32, p *slots, kept int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[n] == p {
		s.kept += kept - p.kept
		p.kept = kept
	}
}

func (p *slots) has(id chunk.ID, loc pack.Loc) bool {
	i, ok := slices.BinarySearchFunc(p.live, loc.Page, func(l slot, n uint32) int { return cmp.Compare(l.page, n) })
	return ok && p.live[i].sum == sumOf(id, loc)
}

// readOn reads what the journal of pack n has had added since.
func (p *slots) readOn(packs *pack.Set, n uint32) error {
	dead := map[uint32]bool{}
	end, _, err := packs.Read(n, p.read, func(r pack.Record) error {
		switch {
		case r.Chunk != nil:
			p.live = append(p.live, slot{r.Chunk.Loc.Page, sumOf(r.Chunk.ID, r.Chunk.Loc)})
		case r.Dead != nil:
			dead[r.Dead.Loc.Page] = true
		}
		return nil
	})
	if err != nil {
		p.read, p.live = 0, nil
		return err
	}
	p.read = end
	p.live = slices.DeleteFunc(p.live, func(l slot) bool { return dead[l.page] })
	slices.SortStableFunc(p.live, func(a, b slot) int { return cmp.Compare(a.page, b.page) })
	p.live = slices.Clip(p.live)
	return nil
}

// sumOf tells a chunk and its place from others.
func sumOf(id chunk.ID, loc pack.Loc) uint32 {
	var buf [pack.SealedLocSize]byte
	return crc32c.Update(crc32c.Checksum(id[:]), pack.AppendLoc(buf[:0], loc))
}
