package index

import (
	"sync"

	"github.com/gpucr/gpucr-fs/index/pack"
)

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

// join adds what other has.
func (b *bitset) join(other *bitset) {
	for n, l := range other.leaves {
		if b.leaves == nil {
			b.leaves = map[uint32]*leaf{}
		}
		if b.leaves[n] == nil {
			b.leaves[n] = &leaf{}
		}
		for i, w := range l {
			b.leaves[n][i] |= w
		}
	}
}

// pinner protects the slots that one draft uses from gc: its manifests are not yet where gc looks. It lasts as long as
// the draft is open or one of its files is, and beyond that until a collection that is running then has ended.
type pinner struct {
	s     *Store
	users int // the draft and its open files; guarded by Store.pinMu

	mu    sync.Mutex
	slots marks
}

// newPinner gives a pinner with one user.
func (s *Store) newPinner() *pinner {
	p := &pinner{s: s, users: 1, slots: marks{}}
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	s.pinners[p] = true
	return p
}

// pin adds a slot. Call with sweepMu held for reading since the slot was looked up or written.
func (p *pinner) pin(l pack.Loc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slots.set(l)
}

// movePins makes whoever pins one of two places of a chunk pin the other as well. Look-ups that were told of the first are waited for.
func (s *Store) movePins(list []move) {
	s.sweepMu.Lock()
	defer s.sweepMu.Unlock()
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	for p := range s.pinners {
		p.mu.Lock()
		for _, m := range list {
			if p.slots[m.from.Pack].has(m.from.Page) || p.slots[m.to.Pack].has(m.to.Page) {
				p.slots.set(m.from)
				p.slots.set(m.to)
			}
		}
		p.mu.Unlock()
	}
}

// hold adds a user.
func (p *pinner) hold() {
	p.s.pinMu.Lock()
	defer p.s.pinMu.Unlock()
	p.users++
}

// release takes a user away.
func (p *pinner) release() {
	p.s.pinMu.Lock()
	defer p.s.pinMu.Unlock()
	if p.users--; p.users == 0 && !p.s.collecting {
		delete(p.s.pinners, p)
	}
}

// keepPins begins a stretch in which no pin is forgotten, which ends when the returned function is called.
func (s *Store) keepPins() (end func()) {
	s.pinMu.Lock()
	s.collecting = true
	s.pinMu.Unlock()
	return func() {
		s.pinMu.Lock()
		defer s.pinMu.Unlock()
		s.collecting = false
		for p := range s.pinners {
			if p.users == 0 {
				delete(s.pinners, p)
			}
		}
	}
}

// pinned gives the slots of pack n that are pinned.
func (s *Store) pinned(n uint32) *bitset {
	out := &bitset{}
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	for p := range s.pinners {
		p.mu.Lock()
		if b := p.slots[n]; b != nil {
			out.join(b)
		}
		p.mu.Unlock()
	}
	return out
}
