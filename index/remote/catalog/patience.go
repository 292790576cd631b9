package catalog

import "time"

// Patience is how long a collector watches something unchanged before it takes it for left behind, by its own clock.
// Zero means not to wait, except for Foreign.
type Patience struct {
	// Pending is for roots of drafts. Writers call Draft.Touch more often.
	Pending time.Duration
	// Removed is the time that readers of a removed checkpoint have.
	Removed time.Duration
	// Foreign is for tombstones of other runs over packs in use; zero keeps them. No request may take effect so long
	// after its collector made it.
	Foreign time.Duration
	// Now gives the time since any fixed moment, and never runs backwards; by default the program's running time.
	Now func() time.Duration
}

// DefaultPatience suits writers that call Draft.Touch every minute, and restores of up to a day.
var DefaultPatience = Patience{Pending: 15 * time.Minute, Removed: 24 * time.Hour}

// seenAt is since when an object has been as it is.
type seenAt struct {
	etag  string
	since time.Duration // of Patience.Now
}

// unchanged watches an object, and says whether it has been as it is for so long.
func (r *collection) unchanged(key, etag string, long time.Duration) bool {
	now := r.patience.Now()
	s, ok := r.seen[key]
	if !ok || s.etag != etag {
		s = seenAt{etag, now}
	}
	r.watch[key] = s
	return now-s.since >= long
}

// Sighting is what a collector has watched.
type Sighting struct {
	ETag string        `json:"etag"`
	For  time.Duration `json:"for"` // how long it has been unchanged, at least
}

// Watched gives what the collector has watched, by key, for a collector of a later process to Remember. Without that
// a process that collects once never finds anything to be left behind.
func (g *Collector) Watched() map[string]Sighting {
	now := g.patience.Now()
	all := make(map[string]Sighting, len(g.seen))
	for key, s := range g.seen {
		all[key] = Sighting{s.etag, now - s.since}
	}
	return all
}

// Remember takes what an earlier collector has watched. Since is how long ago that was: too much of it costs the
// writers and readers that Patience is for, and nothing else, unless Patience.Foreign is set.
func (g *Collector) Remember(watched map[string]Sighting, since time.Duration) {
	now := g.patience.Now()
	for key, s := range watched {
		g.seen[key] = seenAt{s.ETag, now - s.For - max(since, 0)}
	}
}
