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
	PID    int               `json:"pid,omitempty"` // the first process; 0 where the caller does not tell
}

// Dump mounts a new checkpoint for one dump; it says so by a line with Prepared. The caller runs CRIU and answers with
// its verdict. Then the checkpoint is sealed, or, when CRIU failed, given up; if the caller is gone, it is sealed if it
// is complete and nothing else has the state of the processes any more.
//
// What can be known to fail afterwards fails before: CRIU ends the processes.
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
	first, err := wire.HoldDumped(q.PID)
	if err != nil {
		return Brief{}, err
	}
	defer first.Close()
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
		err = errors.Join(err, settle(context.WithoutCancel(ctx), m, q.Name, first))
	case !ok:
		err = errors.Join(err, m.Failure(q.Name), discard(context.WithoutCancel(ctx), m, q.Name, first))
	}
	err = errors.Join(err, d.Mounts.Drop(images))
	if err == nil && !ok {
		err = talk.ErrCallerFailed
	}
	return res, err
})

// settle ends a dump whose caller is gone. CRIU closes its statistics in the images, which seals them, only where no
// other folder is its work directory. Images that are complete when CRIU has ended are sealed here if the processes
// have ended, too, or are about to: they have nothing else to come back from.
func settle(ctx context.Context, m *mounts.Mounted, name string, first *wire.Process) error {
	err := m.Settle(ctx, name)
	if err != nil && first.Fate() == wire.Ends {
		_, err = m.Seal(ctx, name)
	}
	return err
}

// discard gives the checkpoint of a failed dump up, unless it may be all that is left of the processes: something may
// have failed after CRIU had dumped and ended them. Images that are not complete, CRIU has not ended them for.
func discard(ctx context.Context, m *mounts.Mounted, name string, first *wire.Process) error {
	if first.Fate() != wire.Lives {
		return settle(ctx, m, name, first)
	}
	err := m.Discard(name)
	if index.ClassOf(err) == index.ReadOnly {
		return nil // CRIU has sealed it
	}
	return err
}
