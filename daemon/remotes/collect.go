package remotes

import (
	"context"
	"encoding/json"
	"path/filepath"
	"time"

	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/index/storage"
)

const (
	// watchedName is the file in a store that says what its collections of the remote store have watched.
	watchedName = "remote-watched.json"
	// maxWatched bounds that file in bytes.
	maxWatched = 64 << 20
)

// watched is what the file holds.
type watched struct {
	At      time.Time                   `json:"at"` // when it was seen
	Objects map[string]catalog.Sighting `json:"objects"`
}

// Collected says what a collection of the remote store did.
type Collected struct {
	catalog.Report
	// Watched is how many pushes, removed checkpoints and removed hot sets keep their packs until they have been seen
	// unchanged for long enough.
	Watched int
}

// Collect removes from the remote store what no checkpoint needs. How long something has been unchanged counts from the
// first collection of this store that saw it so, which is recorded in the store. A clock that is set forward between
// two collections shortens the wait; slow writers and readers may then fail, and nothing else is lost.
func (r *Remote) Collect(ctx context.Context, patience time.Duration) (Collected, error) {
	r.collecting.Lock()
	defer r.collecting.Unlock()
	s, err := r.Store(ctx)
	if err != nil {
		return Collected{}, err
	}
	path := filepath.Join(r.dir, watchedName)
	g := s.Collector(catalog.Patience{Pending: patience, Removed: patience})
	if text, err := storage.ReadFile(storage.Disk{}, path, maxWatched); err == nil {
		var w watched
		if err := json.Unmarshal(text, &w); err != nil {
			r.log.Warn("what was watched of the remote store is forgotten", "file", path, "err", err)
		}
		g.Remember(w.Objects, time.Since(w.At))
	}
	var sum Collected
	if err := s.SweepLearned(ctx); err != nil { // before: the packs of hot sets then wait no longer than others
		return sum, err
	}
	for again := true; again; {
		res, err := g.Collect(ctx)
		sum.Packs, sum.Bytes, sum.Abandoned = sum.Packs+res.Packs, sum.Bytes+res.Bytes, sum.Abandoned+res.Abandoned
		sum.Kept, sum.Failed = sum.Kept+res.Kept, sum.Failed+res.Failed
		if err != nil {
			return sum, remote.Classify("gc", err)
		}
		again = res.Abandoned > 0 // what they had uploaded goes with the next
	}
	w := watched{At: time.Now(), Objects: g.Watched()}
	sum.Watched = len(w.Objects)
	text, err := json.Marshal(w)
	if err == nil {
		err = storage.WriteFile(storage.Disk{}, path, text)
	}
	return sum, err
}
