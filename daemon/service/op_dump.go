package service

import (
	"context"
	"errors"

	"github.com/gpucr/gpucr-fs/daemon/lifetime"
	"github.com/gpucr/gpucr-fs/daemon/mounts"
	"github.com/gpucr/gpucr-fs/daemon/talk"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// DumpRequest asks for an image directory that is a new checkpoint. The directory goes over a connection of its own,
// see package talk.
type DumpRequest struct {
	ID     string            `json:"id"`
	Name   string            `json:"name"`
	Tags   []string          `json:"tags,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

// Dump mounts a new checkpoint for one dump; it says so by a line with Prepared. The caller runs CRIU and answers with
// its verdict. Then the checkpoint is sealed, or, when CRIU failed, given up; if the caller is gone, it is sealed if it
// is complete.
var Dump = define("dump", func(ctx context.Context, env *Env, q DumpRequest) (Brief, error) {
	if err := needTalk(env, "dump"); err != nil {
		return Brief{}, err
	}
	d := env.Daemon
	h, err := d.Talks.For(ctx, q.ID, false)
	if err != nil {
		return Brief{}, err
	}
	defer h.Close()
	images := "dump " + q.ID
	// Names, tags and labels that cannot be are refused here, before criu touches a process.
	if _, err := d.Mounts.Add(ctx, mounts.Request{Dir: images, New: q.Name, Tags: q.Tags, Private: true}); err != nil {
		return Brief{}, err
	}
	m := d.Mounts.At(images)
	if m == nil {
		return Brief{}, lifetime.ErrStopping()
	}
	if err = env.Store.Label(q.Name, q.Labels); err == nil {
		err = h.Give(m.Root())
	}
	if err == nil {
		err = talk.Say(env.Out, talk.Prepared{Checkpoint: q.Name})
	}
	ok, said := false, true
	if err == nil {
		watched := m.WatchWrites(func(n int64) { env.Progress(wire.Progress{Done: n, Unit: "bytes"}) })
		ok, said = talk.AwaitVerdict(env.In)
		watched()
	}
	var res Brief
	if ok {
		var info index.Info
		if info, err = m.Seal(context.WithoutCancel(ctx), q.Name); err == nil {
			res = brief(info)
		}
	}
	switch {
	case !said:
		// CRIU may still be at it, and have ended the processes already: a complete dump is kept.
		err = errors.Join(err, m.Settle(context.WithoutCancel(ctx), q.Name))
	case !ok:
		err = errors.Join(err, m.Failure(q.Name), discard(m, q.Name))
	}
	err = errors.Join(err, d.Mounts.Drop(images))
	if err == nil && !ok {
		err = talk.ErrCallerFailed
	}
	return res, err
})

// discard gives the checkpoint of a failed dump up. One that is sealed is kept, whatever failed afterwards: CRIU
// seals it when it has ended the processes.
func discard(m *mounts.Mounted, name string) error {
	err := m.Discard(name)
	if index.ClassOf(err) == index.ReadOnly {
		return nil
	}
	return err
}
