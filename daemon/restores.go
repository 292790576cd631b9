package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore"
	"github.com/gpucr/gpucr-fs/restore/feed"
)

// Serving says how the memory of a restore is served. It goes to successors.
type Serving struct {
	// ID names the restore, for whoever waits for it; unique.
	ID string `json:"id"`
	// Checkpoint is the name, tag or ID of a checkpoint.
	Checkpoint string `json:"checkpoint"`
	// Rate bounds what is fetched ahead of demands, in bytes a second; 0 is no bound.
	Rate int64 `json:"rate,omitempty"`
	// RecordGPU is feed.Options'.
	RecordGPU bool `json:"record_gpu,omitempty"`
}

// Memory of a restore's buffers: a share of the cache, within bounds.
const (
	bufferShare = 8
	minBuffers  = 4 << 20
	maxBuffers  = 32 << 20
)

// defaultCache is the cache of a store whose options do not say, see index.Options.
const defaultCache = 128 << 20

func (d *Daemon) buffers() int64 {
	cache := d.o.Index.CacheSize
	if cache == 0 {
		cache = defaultCache
	}
	return min(max(cache/bufferShare, minBuffers), maxBuffers) &^ (1<<20 - 1)
}

// restoring is a restore whose memory this daemon brings.
type restoring struct {
	Serving
	name     string // of the checkpoint
	log      *slog.Logger
	feed     *feed.Feed
	replays  bool // a profile
	adopted  bool // from a daemon that was killed
	prepared time.Time
	done     chan struct{} // closed when all is over

	mu      sync.Mutex
	images  int64 // bytes read through mounts
	resumed bool
	err     error
}

// touch tells the restores of a checkpoint of a read through a mount.
func (d *Daemon) touch(checkpoint, path string, off, n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.restores {
		if r.name == checkpoint && r.running() {
			r.feed.Touch(path, off, n)
		}
	}
}

// running tells that CRIU has not done its part yet, and counts n bytes it read.
func (r *restoring) running() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.resumed
}

// loadProfile gives the profile of a checkpoint, nil without one, and whether one is to be recorded. A damaged one is as good as none.
func (d *Daemon) loadProfile(ref string) (p *prefetch.Profile, record bool, err error) {
	b, err := d.store.Profile(ref)
	if index.ClassOf(err) == index.NotFound || index.ClassOf(err) == index.Corrupt {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	p, again, err := decodeProfile(b)
	if err != nil {
		d.log.Warn("the profile cannot be read, recording a new one", "checkpoint", ref, "error", err)
		return nil, true, nil
	}
	if again {
		return nil, true, nil
	}
	return p, false, nil
}

// feedOptions are those that Start and Takeover share. also, when it is not nil, takes what is logged, too.
func (d *Daemon) feedOptions(s Serving, id string, also slog.Handler) feed.Options {
	log := d.log
	if also != nil {
		log = slog.New(slog.NewMultiHandler(d.log.Handler(), also))
	}
	return feed.Options{Images: feed.Stored{Store: d.store, Ref: id}, Rate: s.Rate, RecordGPU: s.RecordGPU, Logger: log.With("restore", s.ID)}
}

// startRestore starts to serve memory, with the socket in CRIU's work directory work: when it returns, CRIU may be started. The daemon stays until it is all over.
// also, when it is not nil, takes what is logged of it, beside the daemon's log.
func (d *Daemon) startRestore(s Serving, work string, also slog.Handler) (*restoring, error) {
	if len(d.o.Guardian) == 0 {
		return nil, &index.Error{Class: index.Unsupported, Op: "restore", Err: errors.New("this daemon was started without a guardian")}
	}
	c, err := d.store.Checkpoint(s.Checkpoint)
	if err != nil {
		return nil, err
	}
	profile, record, err := d.loadProfile(c.Info().ID)
	if err != nil {
		return nil, err
	}
	s.Checkpoint = c.Info().ID // a name may be used again
	spec, err := encodeServing(s)
	if err != nil {
		return nil, err
	}
	o := d.feedOptions(s, c.Info().ID, also)
	o.Work, o.Memory, o.Profile, o.Record = work, d.buffers(), profile, record
	o.Guardian, o.Spare = d.o.Guardian, d.spare.take()
	if len(d.o.Successor) > 0 {
		o.Successor = append(slices.Clone(d.o.Successor), spec)
	}
	f, err := feed.Start(o)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", c.Info().Name, err)
	}
	return d.enterRestore(&restoring{Serving: s, name: c.Info().Name, log: o.Logger.With("checkpoint", c.Info().Name), feed: f, replays: profile != nil})
}

// enterRestore puts a restore into the table and serves it.
func (d *Daemon) enterRestore(r *restoring) (*restoring, error) {
	r.done, r.prepared = make(chan struct{}), time.Now()
	d.mu.Lock()
	_, taken := d.restores[r.ID]
	if taken || d.stopping {
		d.mu.Unlock()
		r.feed.Abandon()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		r.feed.Serve(ctx)
		r.feed.Close()
		if taken {
			return nil, &index.Error{Class: index.Exists, Op: "restore", Err: fmt.Errorf("there is a restore %s already", r.ID)}
		}
		return nil, errStopping()
	}
	d.restores[r.ID] = r
	if d.forgotten[r.ID] {
		r.feed.Abandon()
	}
	d.wg.Go(func() { d.serveRestore(r) })
	d.mu.Unlock()
	r.log.Info("restore prepared", "bytes", r.feed.Status().TotalBytes, "profile", r.replays)
	return r, nil
}

// serveRestore is the life of a restore in the daemon.
func (d *Daemon) serveRestore(r *restoring) {
	err := r.feed.Serve(d.serving)
	st := r.feed.Status()
	whole := st.PoisonedBytes == 0 && len(st.Killed) == 0 && !st.Finished.IsZero()
	if err == nil {
		r.log.Info("restore is resident", "faults", st.Faults, "copied", st.CopiedBytes, "zero", st.ZeroBytes, "poisoned", st.PoisonedBytes)
		err = d.keepProfile(r, st)
	}
	if err != nil {
		r.log.Error("restore ended", "error", err)
	}
	if cerr := r.feed.Close(); cerr != nil {
		r.log.Error("restore ended uncleanly", "error", cerr)
	}
	r.mu.Lock()
	r.err = err
	r.mu.Unlock()
	close(r.done)
	d.mu.Lock()
	if d.staysLocked() {
		d.spare.start(d.o.Guardian)
	}
	d.mu.Unlock()
	if err == nil && whole && !d.store.ReadOnly() {
		d.keepHot(r)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.restores, r.ID)
	d.checkIdleLocked()
}

// keepProfile stores what a complete restore has recorded.
func (d *Daemon) keepProfile(r *restoring, st feed.Status) error {
	p := r.feed.Profile()
	if p == nil || d.store.ReadOnly() || st.PoisonedBytes > 0 || len(st.Killed) > 0 || st.Finished.IsZero() {
		return nil
	}
	if err := d.store.SetProfile(r.Checkpoint, p.Encode()); err != nil {
		// The processes are well without it.
		d.log.Error("could not keep the profile", "checkpoint", r.name, "error", err)
		return nil
	}
	d.log.Info("profile recorded", "checkpoint", r.name, "touches", len(p.Touches), "bytes", p.Bytes())
	return nil
}

// forget ends a restore that was taken over, or is still to be: it failed, and what there is of its processes is not to be.
func (d *Daemon) forget(id string) {
	d.mu.Lock()
	d.forgotten[id] = true
	r := d.restores[id]
	d.mu.Unlock()
	if r != nil {
		r.feed.Abandon()
		<-r.done
	}
}

// keepHot has the next restore of the checkpoint find its hot set in one place. Nobody waits for that.
func (d *Daemon) keepHot(r *restoring) {
	switch n, err := r.feed.KeepHot(d.serving); {
	case err != nil:
		d.log.Warn("could not keep the hot set", "checkpoint", r.name, "error", err)
	case n > 0:
		d.log.Info("hot set packed", "checkpoint", r.name, "bytes", n)
	}
}

// handPatience is how long a daemon that is told to stop goes on with its restores before it leaves them to successors.
const handPatience = 10 * time.Second

// closeRestores waits for the restores in progress, or leaves them to their guardians.
func (d *Daemon) closeRestores() error {
	defer d.endServ()
	late := time.After(handPatience)
	for {
		d.mu.Lock()
		left := slices.Collect(maps.Values(d.restores))
		d.mu.Unlock()
		if len(left) == 0 {
			return nil
		}
		select {
		case <-left[0].done:
		case <-late:
			d.log.Warn("leaving restores to successors", "restores", len(left))
			d.endServ()
			for _, r := range left {
				<-r.done
			}
			return nil
		}
		// The table changes right after done.
		time.Sleep(time.Millisecond)
	}
}

// restoreList gives a snapshot of the table, ordered by the time they were prepared.
func (d *Daemon) restoreList() []*restoring {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.SortedFunc(maps.Values(d.restores), func(a, b *restoring) int { return a.prepared.Compare(b.prepared) })
}

// RestoreStatus tells how far a restore is.
type RestoreStatus struct {
	ID         string          `json:"id"`
	Checkpoint string          `json:"checkpoint"`
	Total      int64           `json:"total"`   // bytes that do not come through the mount
	Missing    int64           `json:"missing"` // bytes that are still to come
	Faults     int64           `json:"faults"`
	Profile    bool            `json:"profile"`           // one is replayed
	Adopted    bool            `json:"adopted,omitempty"` // the daemon was killed, and this one has taken over
	Bytes      restore.Sources `json:"bytes"`
	Prepared   time.Time       `json:"prepared,omitzero"`
	FirstFault time.Time       `json:"first_fault,omitzero"`
	Finished   time.Time       `json:"finished,omitzero"` // CRIU had restored all tasks
	HotDone    time.Time       `json:"hot_done,omitzero"`
	Resident   time.Time       `json:"resident,omitzero"`
	Poisoned   []string        `json:"poisoned,omitempty"` // memory that could not be read: touching it raises SIGBUS
	Killed     []int           `json:"killed,omitempty"`   // processes that could not be given their memory
}

// status tells how far the restore is.
func (r *restoring) status() RestoreStatus {
	st := r.feed.Status()
	r.mu.Lock()
	images := r.images
	r.mu.Unlock()
	out := RestoreStatus{
		ID: r.ID, Checkpoint: r.name, Total: st.TotalBytes, Missing: st.MissingBytes, Faults: st.Faults, Profile: r.replays, Adopted: r.adopted, Prepared: r.prepared, FirstFault: st.FirstFault,
		Finished: st.Finished, HotDone: st.HotDone, Resident: st.Resident,
		Bytes: restore.Sources{Images: images, Demand: st.Queue.DemandBytes, Hot: st.Queue.HotBytes, Sweep: st.Queue.SweepBytes, Zero: st.ZeroBytes},
	}
	for _, p := range st.Poisoned {
		out.Poisoned = append(out.Poisoned, fmt.Sprintf("%s at %d, %d bytes: %s", p.File, p.Off, p.Len, p.Reason))
	}
	for _, k := range st.Killed {
		out.Killed = append(out.Killed, k.PID)
	}
	return out
}

// wait waits until a restore is resident, and tells of its progress.
func (r *restoring) wait(ctx context.Context, tell func(wire.Progress)) (RestoreStatus, error) {
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-r.done:
			st := r.status()
			r.mu.Lock()
			defer r.mu.Unlock()
			return st, r.err
		case <-ctx.Done():
			return RestoreStatus{}, ctx.Err()
		case <-t.C:
			if st := r.status(); !st.Finished.IsZero() {
				tell(wire.Progress{Done: st.Total - st.Missing, Total: st.Total, Unit: "bytes"})
			}
		}
	}
}
