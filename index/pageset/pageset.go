// Package pageset has sets of pages of packs: which slots are in use, are pinned, or are listed by a journal. Such a
// set takes little memory, whatever the numbers in it are. Its sets are not safe for concurrent use.
package pageset

import (
	"math/bits"

	"github.com/gpucr/gpucr-fs/index/pack"
)

// Pages has one bit per 4 KiB of a pack: a 1 GiB pack takes 38 KiB. It is in leaves of 4 MiB of pack each,
// so that a number from a damaged or hostile journal takes one leaf at most. The zero value is an empty set that is
// ready for use; a nil one is empty too.
type Pages struct {
	leaves map[uint32]*leaf
}

const leafBits = 10 // 4 MiB of pages

type leaf [1 << leafBits / 64]uint64

// Set adds a page.
func (b *Pages) Set(i uint32) {
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

// Has says whether a page is in b.
func (b *Pages) Has(i uint32) bool {
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

// Count gives how many pages are in b, which may be nil.
func (b *Pages) Count() (n int) {
	if b == nil {
		return 0
	}
	for _, l := range b.leaves {
		for _, w := range l {
			n += bits.OnesCount64(w)
		}
	}
	return n
}

// Missing looks for pages of b that other lacks. at is the first page of the 64 among which the lowest of them is.
func (b *Pages) Missing(other *Pages) (at uint32, found bool) {
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

// Join adds the pages that other has.
func (b *Pages) Join(other *Pages) {
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

// Slots is a set of slots: their first pages, by the number of the pack.
type Slots map[uint32]*Pages

// Set adds a slot; fresh says that it was not in the set before.
func (m Slots) Set(l pack.Loc) (fresh bool) {
	b := m[l.Pack]
	if b == nil {
		b = &Pages{}
		m[l.Pack] = b
	}
	if b.Has(l.Page) {
		return false
	}
	b.Set(l.Page)
	return true
}
