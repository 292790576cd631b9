package daemon

import (
	"context"
	"errors"

	"github.com/gpucr/gpucr-fs/index"
)

// DumpRequest asks for an image directory that is a new checkpoint, which goes over a connection of its own, see handed.go.
type DumpRequest struct {
	ID     string            `json:"id"`
	Name   string            `json:"name"`
	Tags   []string          `json:"tags,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

// Dump mounts a new checkpoint for one dump; it says so by a line with Prepared. The caller runs CRIU and answers with its verdict. Then the checkpoint is sealed, or, when
// CRIU failed, given up; when the caller is gone, it is sealed if it is complete.
var Dump = define("dump", func(ctx context.Context, env *Env, q DumpRequest) (Brief, error) {
	if err := needTalk(env, "dump"); err != nil {
		return Brief{}, err
	}
	d := env.Daemon
	h, err := d.handedFor(ctx, q.ID, false)
	if err != nil {
		return Brief{}, err
	}
	defer h.close()
	images := "dump " + q.ID
	if _, err := d.AddMount(ctx, MountRequest{Dir: images, New: q.Name, Private: true}); err != nil {
		return Brief{}, err
	}
	m := d.mountAt(images)
	if m == nil {
		return Brief{}, errStopping()
	}
	if err = d.store.Label(q.Name, q.Labels); err == nil {
		err = h.give(m.m.Root())
	}
	if err == nil {
		err = say(env, Prepared{Checkpoint: q.Name})
	}
	ok, said := false, true
	if err == nil {
		ok, said = awaitVerdict(env)
	}
	var res Brief
	if ok {
		var info index.Info
		if info, err = m.m.Seal(context.WithoutCancel(ctx), q.Name); err == nil {
			res = brief(info)
		}
	}
	switch {
	case !said:
		// CRIU may still be at it, and have ended the processes already: a complete dump is kept.
		err = errors.Join(err, m.m.Settle(context.WithoutCancel(ctx), q.Name))
	case !ok:
		err = errors.Join(err, m.m.Failure(q.Name), discard(m, q.Name))
	}
	err = errors.Join(err, d.dropMount(images))
	if err == nil && !ok {
		err = errCallerFailed
	}
	if err == nil && len(q.Tags) > 0 {
		if err = d.store.Tag(ctx, q.Name, q.Tags, nil); err == nil {
			res.Tags = q.Tags
		}
	}
	return res, err
})

// discard gives the checkpoint of a failed dump up. One that is sealed is kept, whatever failed afterwards: CRIU seals it when it has ended the processes.
func discard(m *mounted, name string) error {
	err := m.m.Discard(name)
	if index.ClassOf(err) == index.ReadOnly {
		return nil
	}
	return err
}
