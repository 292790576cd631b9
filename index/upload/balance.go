package upload

import "github.com/gpucr/gpucr-fs/index/remote/object"

const (
	// leastPack is what each pack object but the last gets at least, in bytes of slots.
	leastPack = object.TargetSize / 2
	// firstPacks of a large checkpoint get firstPack only.
	firstPacks = 4
	firstPack  = object.TargetSize * 3 / 8
	// large is from how many bytes of slots on a checkpoint is large.
	large = 4 * object.TargetSize
	// lately is by how much content, at least, the rest is judged.
	lately = 2 * object.TargetSize
)

// balance says how large the pack objects of a checkpoint become. Each connection of a link may be slow, and as many
// objects as there are packers go at once, in rounds. The objects are made so large that their number fills the last
// round, too: else some of the connections would stand still then. For the same reason the first of a large checkpoint
// are small: nothing is on its way until one is gathered.
type balance struct {
	left          int64 // bytes of content that have not been looked at
	looked, slots int64 // bytes of content that were packed lately, and of their slots
	packers       int   // how many go at once
	begun         int   // pack objects that have been put
	firsts        int   // how many of them are small
	size          int64 // slots of each pack object of this round; 0: as much as goes into one
}

// saw notes that a chunk was dealt with: slot bytes were packed for it, or none.
func (b *balance) saw(content, slot int64) {
	b.left -= content
	if slot > 0 {
		b.looked, b.slots = b.looked+content, b.slots+slot
	}
	if b.looked > 2*lately { // the older something is, the less it counts
		b.looked, b.slots = b.looked/2, b.slots/2
	}
}

// full says whether a pack object with so many bytes of slots is to be put before it is full by itself.
func (b *balance) full(gathered int64) bool {
	if b.begun == 0 && b.firsts == 0 && gathered >= firstPack && b.rest(gathered) >= large {
		b.firsts = firstPacks
	}
	if b.begun < b.firsts {
		return gathered >= firstPack
	}
	if gathered < leastPack {
		return false
	}
	if (b.begun-b.firsts)%b.packers == 0 && b.slots > 0 { // the first of a round
		rest := b.rest(gathered)
		round := int64(b.packers) * object.TargetSize
		rounds := (rest + round - 1) / round
		b.size = 0
		if n := min(rounds*int64(b.packers), rest/leastPack); n > 1 {
			b.size = rest/n + rest/n/32
		}
	}
	return b.size > 0 && gathered >= b.size
}

// rest guesses the bytes of slots that are still to be put, those gathered included: what is left is taken to become as
// small as what was packed.
func (b *balance) rest(gathered int64) int64 {
	return gathered + int64(float64(max(b.left, 0))*float64(b.slots)/float64(max(b.looked, 1)))
}
