package service

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
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

// Checkpoint gives a sealed checkpoint of the store, or pulls the one of that name from the remote store.
func (e *Env) Checkpoint(ctx context.Context, ref string) (*index.Checkpoint, error) {
	c, err := e.Store.Checkpoint(ref)
	if index.ClassOf(err) != index.NotFound || e.Remote == nil || index.ValidName(ref) != nil {
		return c, err
	}
	s, rerr := e.Remote.Store(ctx)
	if rerr == nil {
		_, rerr = s.Pull(ctx, e.Store, ref, ref)
	}
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
	s, err := env.remoteStore(ctx, "pull")
	if err != nil {
		return Brief{}, err
	}
	if r.As == "" {
		r.As = r.Name
	}
	info, err := s.Pull(ctx, env.Store, r.Name, r.As)
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

// Sync takes sealed checkpoints to the remote store, oldest first, and returns when they stand there. It goes on with
// the others where one cannot be taken; the error is then the first one's.
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
	for i, name := range names {
		env.Progress(wire.Progress{Done: int64(i), Total: int64(len(names))})
		p, err := s.Push(ctx, env.Store, name)
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
}

// RemoteList lists the remote store.
var RemoteList = define("ls-remote", func(ctx context.Context, env *Env, _ RemoteListRequest) (RemoteListResult, error) {
	s, err := env.remoteStore(ctx, "ls")
	if err != nil {
		return RemoteListResult{}, err
	}
	list, err := s.List(ctx)
	return RemoteListResult{Remote: env.Remote.Address(), Checkpoints: list}, err
})

// RemoteRemoveRequest names checkpoints of the remote store.
type RemoteRemoveRequest struct {
	Names []string `json:"names"`
}

// RemoteRemove removes checkpoints from the remote store, for all machines.
var RemoteRemove = define("rm-remote", func(ctx context.Context, env *Env, r RemoteRemoveRequest) (RemoteRemoveRequest, error) {
	s, err := env.remoteStore(ctx, "rm")
	if err != nil {
		return r, err
	}
	for i, name := range r.Names {
		if err := s.Remove(ctx, name); err != nil {
			return RemoteRemoveRequest{r.Names[:i]}, err
		}
	}
	return r, nil
})

// RemoteGCRequest asks for what no checkpoint of the remote store needs to be removed.
type RemoteGCRequest struct {
	// Patience is how long a push must have stood still to count as abandoned, and how long the packs of a removed
	// checkpoint stay for those who read it. The collection takes as long.
	Patience time.Duration `json:"patience"`
}

// RemoteGC removes from the remote store what no checkpoint needs. It looks twice, Patience apart.
var RemoteGC = define("gc-remote", func(ctx context.Context, env *Env, r RemoteGCRequest) (catalog.Report, error) {
	s, err := env.remoteStore(ctx, "gc")
	if err != nil {
		return catalog.Report{}, err
	}
	g := s.Collector(catalog.Patience{Pending: r.Patience, Removed: r.Patience})
	if _, err := g.Collect(ctx); err != nil {
		return catalog.Report{}, remote.Classify("gc", err)
	}
	select {
	case <-ctx.Done():
		return catalog.Report{}, ctx.Err()
	case <-time.After(r.Patience):
	}
	var sum catalog.Report
	for range 2 { // what an abandoned push had uploaded goes with the second
		res, err := g.Collect(ctx)
		if err != nil {
			return sum, remote.Classify("gc", err)
		}
		sum.Packs, sum.Bytes, sum.Abandoned = sum.Packs+res.Packs, sum.Bytes+res.Bytes, sum.Abandoned+res.Abandoned
	}
	return sum, nil
})
