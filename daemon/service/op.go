package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/mounts"
	"github.com/gpucr/gpucr-fs/daemon/remotes"
	"github.com/gpucr/gpucr-fs/daemon/restores"
	"github.com/gpucr/gpucr-fs/daemon/talk"
	"github.com/gpucr/gpucr-fs/daemon/uploads"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// Parts are what operations work on in a daemon, beside the store.
type Parts struct {
	Since    time.Time // when it was started
	Mounts   *mounts.Table
	Restores *restores.Table
	Talks    *talk.Places
	Uploads  *uploads.Uploads // nil where the store has no remote store, or cannot be written
	// Staying counts what keeps the daemon until somebody ends it: it was started to stay, or gpucr-fs serve uses it.
	Staying atomic.Int32
}

// Env is what an operation runs in.
type Env struct {
	Store  *index.Store
	Remote *remotes.Remote // nil where the store has no remote store
	Daemon *Parts          // nil where the command itself holds the store
	Log    *slog.Logger
	wire.Streams
}

// Access is a way to an open store.
type Access interface {
	// Here is the environment of operations when this process has the store open; nil when its daemon has.
	Here(wire.Streams) *Env
	// Call runs the operation of that name in the daemon; res is a pointer to its result.
	Call(ctx context.Context, name string, req, res any, st wire.Streams) error
}

// Op is an operation: Req and Res survive a trip through JSON.
type Op[Req, Res any] struct {
	name string
	run  func(ctx context.Context, env *Env, req Req) (Res, error)
}

// Runner is an Op of any type, as a server calls it.
type Runner interface {
	// Serve runs the operation with a request in JSON.
	Serve(ctx context.Context, env *Env, request []byte) (any, error)
}

// table holds every operation by name. It is complete when the package's variables are initialised and never changes
// afterwards.
var table = map[string]Runner{}

// Find gives the operation of a name; false when there is none.
func Find(name string) (Runner, bool) {
	o, ok := table[name]
	return o, ok
}

// define makes an operation and enters it in the table.
func define[Req, Res any](name string, run func(ctx context.Context, env *Env, req Req) (Res, error)) *Op[Req, Res] {
	if _, ok := table[name]; ok {
		panic("operation defined twice: " + name)
	}
	o := &Op[Req, Res]{name, run}
	table[name] = o
	return o
}

func (o *Op[Req, Res]) Serve(ctx context.Context, env *Env, request []byte) (any, error) {
	var req Req
	if err := json.Unmarshal(request, &req); err != nil {
		return nil, &index.Error{Class: index.Invalid, Op: o.name, Err: fmt.Errorf("bad request: %w", err)}
	}
	return o.run(ctx, env, req)
}

// Name is the operation's name.
func (o *Op[Req, Res]) Name() string { return o.name }

// Do runs the operation wherever the store is open.
func (o *Op[Req, Res]) Do(ctx context.Context, a Access, req Req, st wire.Streams) (Res, error) {
	var res Res
	if st.Progress == nil {
		st.Progress = func(wire.Progress) {}
	}
	if env := a.Here(st); env != nil {
		return o.run(ctx, env, req)
	}
	err := a.Call(ctx, o.name, req, &res, st)
	return res, err
}

// needDaemon refuses operations that only make sense where mounts are.
func needDaemon(env *Env, op string) error {
	if env.Daemon != nil {
		return nil
	}
	return &index.Error{Class: index.NotFound, Op: op, Err: errors.New("nothing of this store is mounted"),
		Hint: "mount it with: gpucr-fs mount STORE DIR"}
}
