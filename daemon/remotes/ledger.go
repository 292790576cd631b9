package remotes

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/storage"
)

const (
	// ledgerName is the file in a store that says which of its checkpoints the remote store has.
	ledgerName = "remote-has.json"
	// maxLedger bounds that file in bytes.
	maxLedger = 256 << 20
)

// state of a checkpoint in the ledger.
type state string

const (
	durable state = "durable" // it stands in the remote store
	removed state = "removed" // it stood there, and was removed
)

// entry is what the ledger has of a checkpoint.
type entry struct {
	Name  string `json:"name"` // in the remote store
	State state  `json:"state"`
	// Profile is the sum of the profile that the remote store has, 0 for none.
	Profile uint32 `json:"profile,omitempty"`
	// Hot is the sum of the profile by which the hot set that it has was packed, 0 for none.
	Hot uint32 `json:"hot,omitempty"`
}

// ledger notes which checkpoints of a store the remote store has, by their ids. It is a memory, no truth: what it lacks
// a push finds out, and others may have removed what it has.
type ledger struct {
	path string
	log  *slog.Logger

	mu    sync.Mutex
	read  bool // the file was read, or there was none
	has   map[string]entry
	later []func(has map[string]entry) bool // changes that wait until it is read
}

// openLedger gives the ledger of the store at dir. Without one, or with one that is not as it was written, it is empty.
func openLedger(dir string, log *slog.Logger) *ledger {
	return &ledger{path: filepath.Join(dir, ledgerName), log: log, has: map[string]entry{}}
}

// load reads the file unless that was done, and makes the changes that have waited for it. One that cannot be read now
// is not written over. Call with mu held.
func (l *ledger) load() error {
	if l.read {
		return nil
	}
	text, err := storage.ReadFile(storage.Disk{}, l.path, maxLedger)
	switch {
	case err == nil:
		if err := json.Unmarshal(text, &l.has); err != nil || l.has == nil {
			l.log.Warn("it is looked anew which checkpoints the remote store has", "file", l.path, "err", err)
			l.has = map[string]entry{}
		}
	case !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("what the remote store is known to have: %w", err)
	}
	l.read = true
	for _, fn := range l.later {
		l.apply(fn)
	}
	l.later = nil
	return nil
}

// change has fn change the entries, and writes them if it says that it did. Where they could not be read yet, that is
// done when they are.
func (l *ledger) change(fn func(has map[string]entry) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.load(); err != nil {
		l.log.Warn("what the remote store has could not be noted", "err", err)
		l.later = append(l.later, fn)
		return
	}
	l.apply(fn)
}

// apply is change for entries that have been read. Call with mu held.
func (l *ledger) apply(fn func(has map[string]entry) bool) {
	if !fn(l.has) {
		return
	}
	text, err := json.Marshal(l.has)
	if err == nil {
		err = storage.WriteFile(storage.Disk{}, l.path, text)
	}
	if err != nil { // a later push finds it out
		l.log.Warn("what the remote store has could not be noted", "file", l.path, "err", err)
	}
}

// of gives what is noted of a checkpoint. Where that cannot be read something may be known of it.
func (l *ledger) of(id string) (e entry, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.load() != nil {
		return entry{}, true
	}
	e, known = l.has[id]
	return e, known
}

// Noted fails while it cannot be read which checkpoints the remote store is known to have. Has then says of all that
// something is known of them.
func (r *Remote) Noted() error {
	r.ledger.mu.Lock()
	defer r.ledger.mu.Unlock()
	return r.ledger.load()
}

// Has says whether a checkpoint is known to stand in the remote store, and whether anything is known of it there.
func (r *Remote) Has(id string) (stands, known bool) {
	e, known := r.ledger.of(id)
	return e.State == durable, known
}

// NoteStands notes that the remote store has a checkpoint of this store under a name.
func (r *Remote) NoteStands(id, name string) {
	r.ledger.change(func(has map[string]entry) bool {
		e := entry{name, durable, has[id].Profile, has[id].Hot}
		fresh := has[id] != e
		has[id] = e
		return fresh
	})
}

// Learned is what was learned of a checkpoint by restores: the sum of its profile, and of the profile by which its hot
// set was packed, each 0 for none.
type Learned struct{ Profile, Hot uint32 }

// HasLearned gives what the remote store is known to have of what was learned of a checkpoint.
func (r *Remote) HasLearned(id string) Learned {
	e, _ := r.ledger.of(id)
	return Learned{e.Profile, e.Hot}
}

// NoteLearned notes what the remote store has of what was learned of a checkpoint that stands there.
func (r *Remote) NoteLearned(id string, l Learned) {
	r.ledger.change(func(has map[string]entry) bool {
		e, ok := has[id]
		if !ok || e.Profile == l.Profile && e.Hot == l.Hot {
			return false
		}
		e.Profile, e.Hot = l.Profile, l.Hot
		has[id] = e
		return true
	})
}

// LearnedIn gives what a store has learned of a checkpoint. A hot set that came from the remote store is not counted.
func LearnedIn(s *index.Store, id string) Learned {
	p, err := s.Profile(id)
	if err != nil || len(p) == 0 {
		return Learned{}
	}
	l := Learned{Profile: max(1, crc32c.Checksum(p))}
	if f, err := s.HotSet(id); err == nil {
		if len(f.Pieces()) == 0 {
			l.Hot = l.Profile
		}
		f.Close()
	}
	return l
}

// NoteListed notes which checkpoints there are in the remote store, by their ids.
func (r *Remote) NoteListed(stand func(id string) bool) {
	r.ledger.change(func(has map[string]entry) bool {
		news := false
		for id, e := range has {
			if e.State == durable && !stand(id) {
				has[id], news = entry{Name: e.Name, State: removed}, true
			}
		}
		return news
	})
}

// NoteRemoved notes that the remote store has no checkpoint of this name any more.
func (r *Remote) NoteRemoved(name string) {
	r.ledger.change(func(has map[string]entry) bool {
		news := false
		for id, e := range has {
			if e.Name == name && e.State == durable {
				has[id], news = entry{Name: name, State: removed}, true
			}
		}
		return news
	})
}

// Forget forgets checkpoints that the store has no more.
func (r *Remote) Forget(gone func(id string) bool) {
	r.ledger.change(func(has map[string]entry) bool {
		n := len(has)
		maps.DeleteFunc(has, func(id string, _ entry) bool { return gone(id) })
		return len(has) < n
	})
}
