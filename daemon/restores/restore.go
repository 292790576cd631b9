package restores

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/restore"
	"github.com/gpucr/gpucr-fs/restore/feed"
)

// Restore is a restore whose memory this daemon brings.
type Restore struct {
	Serving
	name     string // of the checkpoint
	log      *slog.Logger
	feed     *feed.Feed
	release  func() // lets the checkpoint be removed
	replays  bool   // a profile
	adopted  bool   // from a daemon that was killed
	prepared time.Time
	done     chan struct{} // closed when all is over

	mu      sync.Mutex
	images  int64 // bytes read through mounts
	resumed bool
	err     error
}

// running tells that CRIU has not done its part yet.
func (r *Restore) running() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.resumed
}

// Name is the name of the checkpoint that is restored.
func (r *Restore) Name() string { return r.name }

// Done is closed when all is over but for the packing of a hot set.
func (r *Restore) Done() <-chan struct{} { return r.done }

// Total is how many bytes are brought on demand or ahead of it.
func (r *Restore) Total() int64 { return r.feed.Status().TotalBytes }

// Replays tells that a profile is replayed.
func (r *Restore) Replays() bool { return r.replays }

// Ready tells what CRIU can be started with.
func (r *Restore) Ready() Ready {
	return Ready{Name: r.name, Replays: r.replays, Inherited: r.feed.Inherited()}
}

// Resumed is to be called when CRIU is done, with the bytes it has read through its mount.
func (r *Restore) Resumed(images int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resumed, r.images = true, images
}

// Abandon ends a restore that failed, and returns when nothing of it is left.
func (r *Restore) Abandon() {
	r.feed.Abandon()
	<-r.done
}

// Retire ends a restore for which CRIU has not come. One that has begun goes on.
func (r *Restore) Retire() { r.feed.Retire() }

// Status tells how far a restore is.
type Status struct {
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

// Status tells how far the restore is.
func (r *Restore) Status() Status {
	st := r.feed.Status()
	r.mu.Lock()
	images := r.images
	r.mu.Unlock()
	out := Status{
		ID: r.ID, Checkpoint: r.name, Total: st.TotalBytes, Missing: st.MissingBytes,
		Faults: st.Faults, Profile: r.replays, Adopted: r.adopted, Prepared: r.prepared, FirstFault: st.FirstFault,
		Finished: st.Finished, HotDone: st.HotDone, Resident: st.Resident,
		Bytes: restore.Sources{
			Images: images,
			Demand: st.Queue.DemandBytes,
			Hot:    st.Queue.HotBytes,
			Sweep:  st.Queue.SweepBytes,
			Zero:   st.ZeroBytes,
		},
	}
	for _, p := range st.Poisoned {
		out.Poisoned = append(out.Poisoned, fmt.Sprintf("%s at %d, %d bytes: %s", p.File, p.Off, p.Len, p.Reason))
	}
	for _, k := range st.Killed {
		out.Killed = append(out.Killed, k.PID)
	}
	return out
}

// Wait waits until a restore is resident, and tells of its progress.
func (r *Restore) Wait(ctx context.Context, tell func(wire.Progress)) (Status, error) {
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-r.done:
			st := r.Status()
			r.mu.Lock()
			defer r.mu.Unlock()
			return st, r.err
		case <-ctx.Done():
			return Status{}, ctx.Err()
		case <-t.C:
			if st := r.Status(); !st.Finished.IsZero() {
				tell(wire.Progress{Done: st.Total - st.Missing, Total: st.Total, Unit: "bytes"})
			}
		}
	}
}
