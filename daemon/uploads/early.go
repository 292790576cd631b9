package uploads

import (
	"context"
	"maps"
)

// watch begins to upload what is being written, until ctx ends.
func (u *Uploads) watch(ctx context.Context) {
	seen := map[string]string{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.changed:
		}
		writing := u.o.Store.Writing()
		for id, name := range writing {
			if seen[id] == "" {
				u.joined.Go(func() { u.early(ctx, id, name) })
			}
		}
		seen = maps.Clone(writing)
	}
}

// dropRemoved gives up what was begun of checkpoints that were removed before they were uploaded.
func (u *Uploads) dropRemoved(ctx context.Context) {
	if !u.begun.Load() {
		return
	}
	s, err := u.o.Remote.Store(ctx)
	if err != nil {
		return
	}
	s.Forsake(ctx, func(id string) bool {
		if u.o.Store.Writing()[id] != "" {
			return true
		}
		_, err := u.o.Store.Info(id) // sealed since
		_, known := u.o.Remote.Has(id)
		return err == nil && !known
	})
}

// early uploads what is being written until it is sealed, or given up. What goes wrong is no matter: it is uploaded
// when it has been sealed.
func (u *Uploads) early(ctx context.Context, id, name string) {
	s, err := u.o.Remote.Store(ctx)
	if err == nil {
		u.begun.Store(true)
		err = s.PushEarly(ctx, u.o.Store, id, name)
	}
	if ctx.Err() != nil && s != nil {
		s.Forsake(ctx, func(string) bool { return false })
	}
	if err != nil {
		u.o.Log.Debug("not uploaded while it is written", "checkpoint", name, "err", err)
	}
}
