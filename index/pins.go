package index

import "github.com/gpucr/gpucr-fs/index/pack"

// bitset has one bit per 4 KiB of a pack: a 1 GiB pack takes 38 KiB. It is in leaves of 4 MiB of pack each: a number from a damaged or hostile journal takes no more
// than what it takes there. The zero value is ready; a nil one is empty.
type bitset struct {
	leaves map[uint32]*leaf
}

const leafBits = 10 // 4 MiB of pages

type leaf [1 << leafBits / 64]uint64

func (b *bitset) set(i uint32) {
	if b.leaves == nil {
		b.leaves = map[uint32]*leaf{}
	}
	l := b.leaves[i>>leafBits]
	if l == nil {
		l = &leaf{}
		b.leaves[i>>leafBits] = l
	}
	i &= 1<<leafBits - 1
	l[i>>6] |= 1 << (i & 63)
}

func (b *bitset) has(i uint32) bool {
	if b == nil {
		return false
	}
	l := b.leaves[i>>leafBits]
	if l == nil {
		return false
	}
	i &= 1<<leafBits - 1
	return l[i>>6]&(1<<(i&63)) != 0
}

// missing gives a bit of b that other lacks: where its leaf begins.
func (b *bitset) missing(other *bitset) (at uint32, found bool) {
	for n, l := range b.leaves {
		have := other.leaves[n]
		if have == nil {
			have = &leaf{}
		}
		for i, w := range l {
			if w&^have[i] != 0 {
				if first := n<<leafBits + uint32(i)<<6; !found || first < at {
					at, found = first, true
				}
			}
		}
	}
	return at, found
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
