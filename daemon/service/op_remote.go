package service

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/remotes"
	"github.com/gpucr/gpucr-fs/daemon/uploads"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/roots"
)

// remoteStore opens the remote store of the store. Class NotFound where it has none.
func (e *Env) remoteStore(ctx context.Context, op string) (*remote.Store, error) {
	if e.Remote == nil {
		return nil, &index.Error{Class: index.NotFound, Op: op, Err: errors.New("this store has no remote store"),
			Hint: "make a store with one: gpucr-fs init --remote s3://BUCKET/PREFIX STORE"}
	}
	return e.Remote.Store(ctx)
}

// uploads gives who takes checkpoints to the remote store; nil where there is none.
func (e *Env) uploads() *uploads.Uploads {
	switch {
	case e.Remote == nil:
		return nil
	case e.Daemon != nil && e.Daemon.Uploads != nil:
		return e.Daemon.Uploads
	}
	return uploads.Idle(e.Store, e.Remote, e.Log)
}

// Checkpoint gives a sealed checkpoint of the store, or pulls the one of that name from the remote store.
func (e *Env) Checkpoint(ctx context.Context, ref string) (*index.Checkpoint, error) {
	c, err := e.Store.Checkpoint(ref)
	if index.ClassOf(err) != index.NotFound || e.Remote == nil || index.ValidName(ref) != nil {
		return c, err
	}
	_, rerr := e.Remote.Pull(ctx, e.Store, ref, ref)
	switch index.ClassOf(rerr) {
	case index.NotFound:
		return nil, err
	case index.Exists: // pulled meanwhile by another
		rerr = nil
	}
	if rerr != nil {
		return nil, rerr
	}
	e.Log.Info("pulled", "checkpoint", ref, "from", e.Remote.Address())
	return e.Store.Checkpoint(ref)
}

// PullRequest names a checkpoint of the remote store.
type PullRequest struct {
	Name string `json:"name"`
	As   string `json:"as,omitempty"` // its name here; default Name
}

// Pull makes a checkpoint of the remote store one of this store. Its payload is fetched when it is read.
var Pull = define("pull", func(ctx context.Context, env *Env, r PullRequest) (Brief, error) {
	if _, err := env.remoteStore(ctx, "pull"); err != nil {
		return Brief{}, err
	}
	info, err := env.Remote.Pull(ctx, env.Store, r.Name, cmp.Or(r.As, r.Name))
	if err != nil {
		return Brief{}, err
	}
	return brief(info), nil
})

// SyncRequest selects checkpoints to take to the remote store; without names all sealed ones.
type SyncRequest struct {
	Names []string `json:"names,omitempty"`
}

// Synced says what became of a checkpoint.
type Synced struct {
	Name string `json:"name"`
	remote.Pushed
	Error string `json:"error,omitempty"`
}

// SyncResult says what was taken to the remote store.
type SyncResult struct {
	Remote      string   `json:"remote"`
	Checkpoints []Synced `json:"checkpoints"`
}

// Sync takes sealed checkpoints to the remote store, oldest first, and returns when they stand there. If one cannot be
// taken it goes on with the others, and returns the first error.
var Sync = define("sync", func(ctx context.Context, env *Env, r SyncRequest) (SyncResult, error) {
	s, err := env.remoteStore(ctx, "sync")
	if err != nil {
		return SyncResult{}, err
	}
	names := r.Names
	if len(names) == 0 {
		all, err := env.Store.Names(ctx)
		if err != nil {
			return SyncResult{}, err
		}
		for _, i := range all {
			if i.State == roots.Sealed {
				names = append(names, i.Name)
			}
		}
	}
	if err := s.Learn(ctx, env.Store); err != nil {
		return SyncResult{}, err
	}
	res := SyncResult{Remote: env.Remote.Address(), Checkpoints: []Synced{}}
	var first error
	for _, name := range names {
		p, err := env.uploads().Take(ctx, s, name, func(done, total int64) {
			env.Progress(wire.Progress{Done: done, Total: total, Unit: "bytes", Item: name})
		})
		done := Synced{Name: name, Pushed: p}
		if err != nil {
			done.Error = err.Error()
			first = cmp.Or(first, err)
		}
		res.Checkpoints = append(res.Checkpoints, done)
		if ctx.Err() != nil {
			break
		}
	}
	return res, first
})

// RemoteListRequest asks for the checkpoints of the remote store.
type RemoteListRequest struct{}

// RemoteListResult has them in the order of their names.
type RemoteListResult struct {
	Remote      string         `json:"remote"`
	Checkpoints []remote.Entry `json:"checkpoints"`
	Unread      []string       `json:"unread,omitempty"` // why some that may stand are not among them
}

// RemoteList lists the remote store.
var RemoteList = define(
	"ls-remote",
	func(ctx context.Context, env *Env, _ RemoteListRequest) (RemoteListResult, error) {
		s, err := env.remoteStore(ctx, "ls")
		if err != nil {
			return RemoteListResult{}, err
		}
		list, unread, err := s.ListWhole(ctx)
		if err == nil && len(unread) == 0 && !env.Store.ReadOnly() {
			ids := map[string]bool{}
			for _, e := range list {
				ids[e.ID] = true
			}
			env.Remote.NoteListed(func(id string) bool { return ids[id] })
		}
		return RemoteListResult{Remote: env.Remote.Address(), Checkpoints: list, Unread: unread}, err
	},
)

// RemoteRemoveRequest names checkpoints of the remote store.
type RemoteRemoveRequest struct {
	Names []string `json:"names"`
}

// RemoteRemove removes checkpoints from the remote store, for all machines; see [remotes.Remote.Remove].
var RemoteRemove = define(
	"rm-remote",
	func(ctx context.Context, env *Env, r RemoteRemoveRequest) (RemoteRemoveRequest, error) {
		if _, err := env.remoteStore(ctx, "rm"); err != nil {
			return RemoteRemoveRequest{}, err
		}
		removed, err := env.Remote.Remove(ctx, r.Names)
		return RemoteRemoveRequest{removed}, err
	},
)

// RemoteVerifyRequest asks to check checkpoints of the remote store.
type RemoteVerifyRequest struct {
	Names  []string `json:"names,omitempty"`  // all when empty
	Subset float64  `json:"subset,omitempty"` // share of the payload to read; 0 means all
}

// RemoteVerify checks what lies in the bucket. Damage is in the result, not an error.
var RemoteVerify = define(
	"verify-remote",
	func(ctx context.Context, env *Env, r RemoteVerifyRequest) (remote.Verified, error) {
		s, err := env.remoteStore(ctx, "verify")
		if err != nil {
			return remote.Verified{}, err
		}
		return s.Verify(ctx, remote.VerifyOptions{Names: r.Names, Subset: r.Subset, Holds: env.Store.Holds,
			Progress: func(done, total int64) { env.Progress(wire.Progress{Done: done, Total: total, Unit: "packs"}) }})
	},
)

// RemoteGCRequest asks for what no checkpoint of the remote store needs to be removed.
type RemoteGCRequest struct {
	// Patience is how long a push must be unchanged to count as abandoned, and how long the packs of a removed
	// checkpoint stay for its readers. Collections of this store measure it, this one and earlier ones.
	Patience time.Duration `json:"patience"`
	// Repack bounds what is read and written for packs that are less than half in use, in bytes; 0: they stay.
	Repack int64 `json:"repack,omitempty"`
	// DryRun says what would be removed and repacked.
	DryRun bool `json:"dry_run,omitempty"`
}

// RemoteGC removes from the remote store what no checkpoint needs.
var RemoteGC = define("gc-remote", func(ctx context.Context, env *Env, r RemoteGCRequest) (remotes.Collected, error) {
	if _, err := env.remoteStore(ctx, "gc"); err != nil {
		return remotes.Collected{}, err
	}
	return env.Remote.Collect(ctx, remotes.CollectOptions{Patience: r.Patience, Repack: r.Repack, DryRun: r.DryRun,
		Holds: env.Store.Holds})
})
