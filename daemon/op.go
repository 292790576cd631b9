package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// Env is what an operation runs in.
type Env struct {
	Store  *index.Store
	Daemon *Daemon // nil where the command itself holds the store
	Log    *slog.Logger
	wire.Streams
}

// Op is an operation: Req and Res survive a trip through JSON.
type Op[Req, Res any] struct {
	name string
	run  func(ctx context.Context, env *Env, req Req) (Res, error)
}

// runner is an Op of any type, as the server calls it.
type runner interface {
	serve(ctx context.Context, env *Env, request []byte) (any, error)
}

// table holds every operation by name. It is complete when the package's variables are initialised and never changes afterwards.
var table = map[string]runner{}

// define makes an operation and enters it in the table.
func define[Req, Res any](name string, run func(ctx context.Context, env *Env, req Req) (Res, error)) *Op[Req, Res] {
	if _, ok := table[name]; ok {
		panic("operation defined twice: " + name)
	}
	o := &Op[Req, Res]{name, run}
	table[name] = o
	return o
}

func (o *Op[Req, Res]) serve(ctx context.Context, env *Env, request []byte) (any, error) {
	var req Req
	if err := json.Unmarshal(request, &req); err != nil {
		return nil, &index.Error{Class: index.Invalid, Op: o.name, Err: fmt.Errorf("bad request: %w", err)}
	}
	return o.run(ctx, env, req)
}

// Do runs the operation wherever the session's store is open.
func (o *Op[Req, Res]) Do(ctx context.Context, s *Session, req Req, st wire.Streams) (Res, error) {
	var res Res
	if st.Progress == nil {
		st.Progress = func(wire.Progress) {}
	}
	if s.client == nil {
		return o.run(ctx, &Env{Store: s.store, Log: s.log, Streams: st}, req)
	}
	err := s.client.call(ctx, o.name, req, &res, st)
	return res, err
}

// needDaemon refuses operations that only make sense where mounts are.
func needDaemon(env *Env, op string) error {
	if env.Daemon != nil {
		return nil
	}
	return &index.Error{Class: index.NotFound, Op: op, Err: errors.New("nothing of this store is mounted"), Hint: "mount it with: gpucr-fs mount STORE DIR"}
}
