// Package unsealed knows what checkpoints that are being written have stored, for uploads that begin before the
// checkpoints are sealed.
package unsealed

import (
	"sync"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
)

// Drafts are the checkpoints that are being written. A nil one knows of none.
type Drafts struct {
	mu   sync.Mutex
	open map[string]*Draft // by id
}

// Draft is one of them. A nil one notes nothing.
type Draft struct {
	name string

	mu     sync.Mutex
	flying []*chunks.Pending // cut, in this order, and not in ids
	ids    []chunk.ID        // stored
}

// New gives drafts of which there are none yet.
func New() *Drafts { return &Drafts{open: map[string]*Draft{}} }

// Begin notes that a checkpoint is being written.
func (s *Drafts) Begin(id, name string) *Draft {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := &Draft{name: name}
	s.open[id] = d
	return d
}

// End notes that it has been sealed or aborted.
func (s *Drafts) End(id string) {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, id)
	}
}

// Note notes a chunk that is being stored.
func (d *Draft) Note(p *chunks.Pending) {
	if d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.flying = append(d.flying, p)
		d.land()
	}
}

// land moves what has been stored to ids. Call with mu held.
func (d *Draft) land() {
	for len(d.flying) > 0 {
		p := d.flying[0]
		select {
		case <-p.Done:
			if p.Err == nil {
				d.ids = append(d.ids, p.Ref.ID)
			}
			d.flying = d.flying[1:]
		default:
			return
		}
	}
}

// Names gives the names of the checkpoints, by their ids.
func (s *Drafts) Names() map[string]string {
	out := map[string]string{}
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		for id, d := range s.open {
			out[id] = d.name
		}
	}
	return out
}

// Stored gives the chunks that a checkpoint has stored, about in their order and without the first ones, and how many
// wait to be stored; open is false once it has been sealed or aborted.
func (s *Drafts) Stored(id string, first int) (ids []chunk.ID, waiting int, open bool) {
	if s == nil {
		return nil, 0, false
	}
	s.mu.Lock()
	d := s.open[id]
	s.mu.Unlock()
	if d == nil {
		return nil, 0, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.land()
	return d.ids[first:len(d.ids):len(d.ids)], len(d.flying), true
}
