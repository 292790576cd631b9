package remotes

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"path/filepath"
	"time"

	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/index/remote/repack"
	"github.com/gpucr/gpucr-fs/index/storage"
)

const (
	// watchedName is the file in a store that says what its collections of the remote store have watched.
	watchedName = "remote-watched.json"
	// maxWatched bounds that file in bytes.
	maxWatched = 64 << 20
	// fullName is the file in a store that says which packs its collections have found to be at least half in use.
	fullName = "remote-packs.json"
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
	// Repacked says what was done about packs of which little is in use.
	Repacked repack.Report
}

// CollectOptions of a collection.
type CollectOptions struct {
	// Patience is how long pushes and readers are given.
	Patience time.Duration
	// Repack bounds what is read and written for packs that are less than half in use, in bytes; 0: they stay.
	Repack int64
	// Holds refuses a slot of a pack object that does not hold a chunk; needed with Repack.
	Holds func(c pack.Chunk, slot []byte) error
	// DryRun looks and changes nothing. Packs that pushes and readers still keep are not counted.
	DryRun bool
}

// Collect removes from the remote store what no checkpoint needs. How long something has been unchanged counts from the
// first collection of this store that saw it so, which is recorded in the store. A clock that is set forward between
// two collections shortens the wait; slow writers and readers may then fail, and nothing else is lost.
//
// Then it has what is in use of packs that are less than half in use copied. These go with a later collection, when
// their readers have had their time.
func (r *Remote) Collect(ctx context.Context, o CollectOptions) (Collected, error) {
	r.collecting.Lock()
	defer r.collecting.Unlock()
	s, err := r.Store(ctx)
	if err != nil {
		return Collected{}, err
	}
	path := filepath.Join(r.dir, watchedName)
	g := s.Collector(catalog.Patience{Pending: o.Patience, Removed: o.Patience})
	if text, err := storage.ReadFile(storage.Disk{}, path, maxWatched); err == nil {
		var w watched
		if err := json.Unmarshal(text, &w); err != nil {
			r.log.Warn("what was watched of the remote store is forgotten", "file", path, "err", err)
		}
		g.Remember(w.Objects, time.Since(w.At))
	}
	var sum Collected
	if o.DryRun {
		return r.garbage(ctx, s, g, o)
	}
	err = r.collect(ctx, s, g, o, &sum)
	// What was seen is kept where something failed, too: else nothing would ever have been unchanged for long enough.
	w := watched{At: time.Now(), Objects: g.Watched()}
	sum.Watched = len(w.Objects)
	text, werr := json.Marshal(w)
	if werr == nil {
		werr = storage.WriteFile(storage.Disk{}, path, text)
	}
	return sum, cmp.Or(err, werr)
}

// collect collects, and then repacks.
func (r *Remote) collect(
	ctx context.Context, s *remote.Store, g *catalog.Collector, o CollectOptions, sum *Collected,
) (err error) {
	if err := s.SweepLearned(ctx); err != nil { // before: the packs of hot sets then wait no longer than others
		return err
	}
	if err := sum.collect(ctx, g); err != nil {
		return err
	}
	if sum.Repacked, err = r.repack(ctx, s, o); err == nil && sum.Repacked.Packs > 0 {
		err = sum.collect(ctx, g) // from now on it is seen how long they have not been needed
	}
	return err
}

// collect collects until nothing more is abandoned: what that had uploaded goes with the next.
func (c *Collected) collect(ctx context.Context, g *catalog.Collector) error {
	for again := true; again; {
		res, err := g.Collect(ctx)
		c.Packs, c.Bytes, c.Abandoned = c.Packs+res.Packs, c.Bytes+res.Bytes, c.Abandoned+res.Abandoned
		c.Kept, c.Failed = c.Kept+res.Kept, c.Failed+res.Failed
		if err != nil {
			return remote.Classify("gc", err)
		}
		again = res.Abandoned > 0
	}
	return nil
}

// garbage says what a collection would remove and repack now.
func (r *Remote) garbage(
	ctx context.Context, s *remote.Store, g *catalog.Collector, o CollectOptions,
) (sum Collected, err error) {
	packs, err := g.Garbage(ctx)
	if err != nil {
		return sum, remote.Classify("gc", err)
	}
	sum.Packs = len(packs)
	for _, p := range packs {
		sum.Bytes += p.Size
	}
	sum.Repacked, err = r.repack(ctx, s, o)
	return sum, err
}

// repack repacks, and keeps what was found to be in use for the next time.
func (r *Remote) repack(ctx context.Context, s *remote.Store, o CollectOptions) (repack.Report, error) {
	path, full := filepath.Join(r.dir, fullName), map[string]uint64{}
	if text, err := storage.ReadFile(storage.Disk{}, path, maxWatched); err == nil {
		if err := json.Unmarshal(text, &full); err != nil {
			r.log.Warn("what was seen of packs of the remote store is forgotten", "file", path, "err", err)
			full = map[string]uint64{}
		}
	}
	before := maps.Clone(full)
	res, err := s.Repack(ctx, remote.RepackOptions{Holds: o.Holds, Most: o.Repack, Full: full, DryRun: o.DryRun})
	if err != nil || maps.Equal(before, full) || o.DryRun {
		return res, err
	}
	text, err := json.Marshal(full)
	if err == nil {
		err = storage.WriteFile(storage.Disk{}, path, text)
	}
	return res, err
}
