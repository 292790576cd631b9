package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/mounts"
	"github.com/gpucr/gpucr-fs/daemon/restores"
	"github.com/gpucr/gpucr-fs/daemon/uploads"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/fs"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
)

// AddMount adds a mount to a running daemon.
var AddMount = define("mount", func(ctx context.Context, env *Env, r mounts.Request) (mounts.Result, error) {
	if err := needDaemon(env, "mount"); err != nil {
		return mounts.Result{}, err
	}
	return env.Daemon.Mounts.Add(ctx, r)
})

// UnmountRequest names a mount.
type UnmountRequest struct {
	Dir   string `json:"dir"`
	Force bool   `json:"force,omitempty"` // detach it from under its users
}

// UnmountResult says what is left.
type UnmountResult struct {
	Dir  string `json:"dir"`
	Last bool   `json:"last"` // it was the daemon's last mount, and the daemon goes
	// Unfinished is what was left when the mount had gone: checkpoints that were not complete.
	Unfinished []string `json:"unfinished,omitempty"`
	// Lacking are the sealed checkpoints that the remote store is not known to have.
	Lacking []string `json:"lacking,omitempty"`
}

// Unmount flushes and detaches one mount. With the last one it waits for uploads to the remote store that are under
// way.
var Unmount = define("umount", func(ctx context.Context, env *Env, r UnmountRequest) (UnmountResult, error) {
	if err := needDaemon(env, "umount"); err != nil {
		return UnmountResult{}, err
	}
	res := UnmountResult{Dir: r.Dir}
	err := env.Daemon.Mounts.Unmount(ctx, r.Dir, r.Force)
	if u := (*fs.Unfinished)(nil); errors.As(err, &u) {
		for _, left := range u.Errs {
			res.Unfinished = append(res.Unfinished, left.Error())
		}
		err = nil
	}
	// The daemon goes by itself soon when nothing is mounted, and of restores there are only such whose hot set is
	// being packed. One that stays for something else is not to be waited for.
	res.Last = err == nil && env.Daemon.Mounts.None() && env.Daemon.Restores.Over() && env.Daemon.Staying.Load() == 0
	if up := env.Daemon.Uploads; res.Last && up != nil {
		err = up.Settle(ctx, func(s uploads.State) {
			env.Progress(wire.Progress{Done: s.Done, Total: s.Total, Unit: "bytes", Item: s.Name})
		})
		if err == nil {
			res.Lacking, err = up.Lacking(ctx)
		}
	}
	return res, err
})

// SealRequest names a checkpoint that is being written.
type SealRequest struct {
	Name string `json:"name"`
}

// Seal completes a checkpoint. One that is sealed already is given as it is.
var Seal = define("seal", func(ctx context.Context, env *Env, r SealRequest) (Brief, error) {
	if env.Daemon != nil {
		for _, m := range env.Daemon.Mounts.List() {
			if d, ok := m.Draft(r.Name); ok {
				if err := sealable(d); err != nil {
					return Brief{}, err
				}
			}
			info, err := m.Seal(ctx, r.Name)
			if err == nil || index.ClassOf(err) != index.NotFound {
				return brief(info), err
			}
		}
	}
	all, err := env.Store.Names(ctx)
	if err != nil {
		return Brief{}, err
	}
	for _, c := range all {
		if c.Name != r.Name {
			continue
		}
		if c.State == index.Sealed {
			return brief(c), nil
		}
		return Brief{}, &index.Error{Class: index.Invalid, Op: "seal", Checkpoint: r.Name,
			Err:  fmt.Errorf("it is %s and cannot be sealed", c.State),
			Hint: "its writer died before it was complete: remove it with gpucr-fs gc and dump again"}
	}
	return Brief{}, &index.Error{Class: index.NotFound, Op: "seal",
		Err: fmt.Errorf("there is no checkpoint %.128q", r.Name), Hint: "gpucr-fs ls STORE shows the names"}
})

// sealable refuses what is no checkpoint: a dump that failed, or some other folder. It stays as it is, for an
// operator to find out why.
func sealable(d *index.Draft) error {
	err := index.NeedInventory("seal", d.Name(), d.Stat)
	var e *index.Error
	if errors.As(err, &e) && e.Class == index.Invalid {
		e.Hint = "dump into it again, or remove it: rm -r MOUNT/.checkpoints/" + d.Name()
	}
	return err
}

// StatsRequest asks for live counters.
type StatsRequest struct{}

// MountStats are the counters of one mount.
type MountStats struct {
	Dir        string    `json:"dir"`
	Checkpoint string    `json:"checkpoint,omitempty"`
	New        string    `json:"new,omitempty"`
	Since      time.Time `json:"since"`
	fs.Stats
}

// StatsResult are counters since the store was opened: by the daemon, or a moment ago.
type StatsResult struct {
	Daemon  bool         `json:"daemon"`
	PID     int          `json:"pid,omitempty"`
	Since   time.Time    `json:"since,omitzero"`
	Metrics string       `json:"metrics,omitempty"` // where Prometheus is served
	Page    string       `json:"page,omitempty"`    // where the page is served
	Store   index.Stats  `json:"store"`
	Mounts  []MountStats `json:"mounts"`
	// Restores are those whose memory is still on its way.
	Restores []restores.Status `json:"restores"`
	// Uploads are what the daemon takes to the remote store; nil where there is none.
	Uploads *uploads.State `json:"uploads,omitempty"`
	// Requests are those to the remote store, by kind; nil where there is none.
	Requests map[bucket.Kind]bucket.Counts `json:"requests,omitempty"`
}

// LiveStats gives live counters.
var LiveStats = define("stats", func(_ context.Context, env *Env, _ StatsRequest) (StatsResult, error) {
	res := StatsResult{Store: env.Store.Stats(), Mounts: []MountStats{}, Restores: []restores.Status{}}
	if env.Remote != nil {
		res.Requests = env.Remote.Counted()
	}
	if d := env.Daemon; d != nil {
		res.Daemon, res.PID, res.Since = true, os.Getpid(), d.Since.UTC()
		res.Metrics, res.Page = d.Mounts.Served()
		for _, m := range d.Mounts.List() {
			res.Mounts = append(
				res.Mounts,
				MountStats{m.Request.Dir, m.Request.Checkpoint, m.Request.New, m.Since.UTC(), m.Stats()},
			)
		}
		for _, r := range d.Restores.List() {
			res.Restores = append(res.Restores, r.Status())
		}
		if d.Uploads != nil {
			s := d.Uploads.State()
			res.Uploads = &s
		}
	}
	return res, nil
})
