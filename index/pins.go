package index

import "github.com/gpucr/gpucr-fs/index/pack"

// bitset has one bit per 4 KiB of a pack: a 1 GiB pack takes 32 KiB.
type bitset struct{ words []uint64 }

func (b *bitset) set(i uint32) {
	w := int(i >> 6)
	if w >= len(b.words) {
		b.words = append(b.words, make([]uint64, w+1-len(b.words))...)
	}
	b.words[w] |= 1 << (i & 63)
}

func (b *bitset) has(i uint32) bool {
	w := int(i >> 6)
	return b != nil && w < len(b.words) && b.words[w]&(1<<(i&63)) != 0
}

// pinner protects the chunks of a draft from gc: their manifests are not yet where gc looks.
type pinner struct{ s *Store }

// beginPins opens a stretch in which chunks are pinned; each must be ended once.
func (s *Store) beginPins() *pinner {
	s.pinMu.Lock()
	s.drafting++
	s.pinMu.Unlock()
	return &pinner{s}
}

func (p *pinner) pin(l pack.Loc) {
	p.s.pinMu.Lock()
	defer p.s.pinMu.Unlock()
	b := p.s.pins[l.Pack]
	if b == nil {
		b = &bitset{}
		p.s.pins[l.Pack] = b
	}
	b.set(l.Page)
}

func (p *pinner) end() {
	p.s.pinMu.Lock()
	defer p.s.pinMu.Unlock()
	p.s.drafting--
	p.s.unpin()
}

// unpin forgets all pins once nobody needs them: no draft whose chunks they protect, and no collection that might have marked before one was sealed. Call with pinMu held.
func (s *Store) unpin() {
	if s.drafting == 0 && !s.collecting {
		clear(s.pins)
	}
}

func (s *Store) pinned(l pack.Loc) bool {
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	return s.pins[l.Pack].has(l.Page)
}
