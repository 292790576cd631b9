package chunks

import (
	"sync"

	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/pageset"
)

// Pins protect the slots that one draft uses from gc: its manifests are not yet where gc looks. It lasts as long as
// the draft is open or one of its files is, and beyond that until a collection that is running then has ended.
type Pins struct {
	s     *Store
	users int // the draft and its open files; guarded by Store.pinMu

	mu    sync.Mutex
	slots pageset.Slots
}

// NewPins gives pins with one user.
func (s *Store) NewPins() *Pins {
	p := &Pins{s: s, users: 1, slots: pageset.Slots{}}
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	s.pinners[p] = true
	return p
}

// pin adds a slot. Call with sweepMu held for reading since the slot was looked up or written.
func (p *Pins) pin(l pack.Loc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slots.Set(l)
}

// Hold adds a user.
func (p *Pins) Hold() {
	p.s.pinMu.Lock()
	defer p.s.pinMu.Unlock()
	p.users++
}

// Release takes a user away.
func (p *Pins) Release() {
	p.s.pinMu.Lock()
	defer p.s.pinMu.Unlock()
	if p.users--; p.users == 0 && !p.s.collecting {
		delete(p.s.pinners, p)
	}
}

// KeepPins begins a stretch in which no pin is forgotten, which ends when the returned function is called.
func (s *Store) KeepPins() (end func()) {
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

// Pinned gives the slots of pack n that are pinned.
func (s *Store) Pinned(n uint32) *pageset.Pages {
	out := &pageset.Pages{}
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	for p := range s.pinners {
		p.mu.Lock()
		if b := p.slots[n]; b != nil {
			out.Join(b)
		}
		p.mu.Unlock()
	}
	return out
}
