package uploads

import (
	"context"

	"github.com/gpucr/gpucr-fs/daemon/remotes"
	"github.com/gpucr/gpucr-fs/index"
)

// Learned has the profile of a checkpoint taken to the bucket, where that has the checkpoint: a restore has recorded
// it after the checkpoint was taken there, or found it in its own store alone. The caller holds the daemon.
func (u *Uploads) Learned(ref string) {
	if u == nil {
		return
	}
	info, err := u.o.Store.Info(ref)
	if err != nil {
		return // removed meanwhile
	}
	u.set(func() { u.learned[info.ID] = true })
	u.signal()
}

// lookForProfiles has the profiles of all checkpoints looked at, once: an earlier daemon may have been killed before it
// had taken one.
func (u *Uploads) lookForProfiles(ctx context.Context) error {
	all, err := u.o.Store.Names(ctx)
	if err != nil {
		return err
	}
	u.set(func() {
		for _, i := range all {
			if i.State == index.Sealed {
				u.learned[i.ID] = true
			}
		}
		u.looked = true
	})
	return nil
}

// profiles takes to the bucket what restores have learned since it has the checkpoints. again: something could not be
// taken.
func (u *Uploads) profiles(ctx context.Context) (again bool) {
	if !u.looked && u.lookForProfiles(ctx) != nil {
		return true
	}
	var ids []string
	u.set(func() {
		for id := range u.learned {
			ids = append(ids, id)
		}
	})
	for _, id := range ids {
		if err := u.profile(ctx, id); err != nil {
			if ctx.Err() == nil {
				u.o.Log.Warn("a profile is not uploaded, and tried again later", "checkpoint", id, "err", err)
			}
			return true
		}
		u.set(func() { delete(u.learned, id) })
	}
	return false
}

func (u *Uploads) profile(ctx context.Context, id string) error {
	if stands, _ := u.o.Remote.Has(id); !stands {
		return nil // it goes there with the checkpoint, if that does
	}
	sum := remotes.SumOfProfile(u.o.Store, id)
	if sum == 0 || sum == u.o.Remote.HasProfile(id) {
		return nil
	}
	p, err := u.o.Store.Profile(id)
	if err != nil {
		return nil // cleared or removed meanwhile
	}
	s, err := u.o.Remote.Store(ctx)
	if err == nil {
		err = s.PutProfile(ctx, id, p)
	}
	if err == nil {
		u.o.Remote.NoteProfile(id, sum)
		u.o.Log.Info("profile uploaded", "checkpoint", id)
	}
	return err
}
