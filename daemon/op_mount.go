package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpucr/gpucr-fs/fs"
	"github.com/gpucr/gpucr-fs/index"
)

// MountRequest describes a mount.
type MountRequest struct {
	Dir         string `json:"dir"`                   // absolute; of a private mount only what it is called
	Checkpoint  string `json:"checkpoint,omitempty"`  // shown as the root; the one sealed last when empty
	New         string `json:"new,omitempty"`         // a new checkpoint to show as the root, for writing
	AllowOther  bool   `json:"allow_other,omitempty"` // let other users in
	ReadaheadKB int    `json:"readahead_kb,omitempty"`
	MetricsAddr string `json:"metrics_addr,omitempty"` // HOST:PORT to serve Prometheus at
	Debug       bool   `json:"debug,omitempty"`        // log every request of the kernel
	Private     bool   `json:"private,omitempty"`      // of one restore or dump, which takes it away; attached nowhere
	Namespace   string `json:"namespace,omitempty"`    // the mount namespace in which Dir is meant, see fs.Namespace
	ReadOnly    bool   `json:"read_only,omitempty"`    // nothing in the store may change
}

// MountResult is a mount that serves.
type MountResult struct {
	Dir        string `json:"dir"`
	Store      string `json:"store"`
	Checkpoint string `json:"checkpoint,omitempty"`
	New        string `json:"new,omitempty"`
	PID        int    `json:"pid"` // of the daemon
	Metrics    string `json:"metrics,omitempty"`
	ReadOnly   bool   `json:"read_only,omitempty"` // the store is open for reading only
}

// AddMount adds a mount to a running daemon.
var AddMount = define("mount", func(ctx context.Context, env *Env, r MountRequest) (MountResult, error) {
	if err := needDaemon(env, "mount"); err != nil {
		return MountResult{}, err
	}
	return env.Daemon.AddMount(ctx, r)
})

// UnmountRequest names a mount.
type UnmountRequest struct {
	Dir   string `json:"dir"`
	Force bool   `json:"force,omitempty"` // detach it from under its users
}

// UnmountResult says what is left.
type UnmountResult struct {
	Dir  string `json:"dir"`
	Last bool   `json:"last"` // it was the daemon's last mount
	// Unfinished is what was left when the mount had gone: checkpoints that were not complete.
	Unfinished []string `json:"unfinished,omitempty"`
}

// Unmount flushes and detaches one mount.
var Unmount = define("umount", func(ctx context.Context, env *Env, r UnmountRequest) (UnmountResult, error) {
	if err := needDaemon(env, "umount"); err != nil {
		return UnmountResult{}, err
	}
	res := UnmountResult{Dir: r.Dir}
	var err error
	res.Last, err = env.Daemon.Unmount(ctx, r.Dir, r.Force)
	if u := (*fs.Unfinished)(nil); errors.As(err, &u) {
		for _, left := range u.Errs {
			res.Unfinished = append(res.Unfinished, left.Error())
		}
		err = nil
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
		for _, m := range env.Daemon.mountList() {
			if d, ok := m.m.Draft(r.Name); ok {
				if err := sealable(d); err != nil {
					return Brief{}, err
				}
			}
			info, err := m.m.Seal(ctx, r.Name)
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
		return Brief{}, &index.Error{Class: index.Invalid, Op: "seal", Checkpoint: r.Name, Err: fmt.Errorf("it is %s and cannot be sealed", c.State),
			Hint: "its writer died before it was complete: remove it with gpucr-fs gc and dump again"}
	}
	return Brief{}, &index.Error{Class: index.NotFound, Op: "seal", Err: fmt.Errorf("there is no checkpoint %.128q", r.Name), Hint: "gpucr-fs ls STORE shows the names"}
})

// sealable refuses what is no checkpoint: a dump that failed, or some other folder. It stays as it is, for whoever finds out why.
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
	Store   index.Stats  `json:"store"`
	Mounts  []MountStats `json:"mounts"`
	// Restores are those whose memory is still on its way.
	Restores []RestoreStatus `json:"restores"`
}

// LiveStats gives live counters.
var LiveStats = define("stats", func(_ context.Context, env *Env, _ StatsRequest) (StatsResult, error) {
	res := StatsResult{Store: env.Store.Stats(), Mounts: []MountStats{}, Restores: []RestoreStatus{}}
	if d := env.Daemon; d != nil {
		res.Daemon, res.PID, res.Since, res.Metrics = true, os.Getpid(), d.started.UTC(), d.metrics.addr()
		for _, m := range d.mountList() {
			res.Mounts = append(res.Mounts, MountStats{m.req.Dir, m.req.Checkpoint, m.req.New, m.since.UTC(), m.m.Stats()})
		}
		for _, r := range d.restoreList() {
			res.Restores = append(res.Restores, r.status())
		}
	}
	return res, nil
})

// checkNamespace refuses a mount that would not be seen by who asks for it.
func (r *MountRequest) checkNamespace() error {
	here, err := fs.Namespace()
	if err != nil || r.Namespace == "" || r.Namespace == here {
		return err
	}
	return &index.Error{Class: index.Unsupported, Op: "mount", File: r.Dir, Err: fmt.Errorf("the store's daemon, process %d, is in another mount namespace, where the mount would be", os.Getpid()),
		Hint: fmt.Sprintf("mount it there (nsenter -t %d -m) and bind it to where it is needed, or end the daemon by unmounting there", os.Getpid())}
}

// Validate refuses a mount that cannot be meant.
func (r *MountRequest) Validate() error {
	if r.Checkpoint != "" && r.New != "" {
		return &index.Error{Class: index.Invalid, Op: "mount", Err: errors.New("a mount shows either a checkpoint or a new one"), Hint: "drop --checkpoint or --new"}
	}
	return nil
}
