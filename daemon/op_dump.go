package daemon

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/gpucr/gpucr-fs/index"
)

// DumpRequest asks for an image directory that is a new checkpoint. The folder is the caller's.
type DumpRequest struct {
	Name   string            `json:"name"`
	Tags   []string          `json:"tags,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	Dir    string            `json:"dir"` // absolute, with a folder images in it
}

// Dump mounts a new checkpoint for one dump; it says so by a line with Prepared. The caller runs CRIU and answers with its verdict. Then the checkpoint is sealed, or, when
// CRIU failed, given up; when the caller is gone, it is sealed if it is complete.
var Dump = define("dump", func(ctx context.Context, env *Env, q DumpRequest) (Brief, error) {
	if err := needTalk(env, "dump"); err != nil {
		return Brief{}, err
	}
	d := env.Daemon
	images := filepath.Join(q.Dir, imagesDir)
	if _, err := d.AddMount(ctx, MountRequest{Dir: images, New: q.Name, Private: true}); err != nil {
		return Brief{}, err
	}
	m := d.mountAt(images)
	err := d.store.Label(q.Name, q.Labels)
	if err == nil {
		err = say(env, Prepared{Checkpoint: q.Name, Images: images})
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
		err = errors.Join(err, discard(m, q.Name))
	}
	err = errors.Join(err, d.dropMount(images), folder(q.Dir).clear())
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
