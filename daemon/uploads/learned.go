package uploads

import (
	"context"

	"github.com/gpucr/gpucr-fs/daemon/remotes"
	"github.com/gpucr/gpucr-fs/index"
)

// Learned has the profile and the packed hot set of a checkpoint taken to the bucket, where that has the checkpoint: a
// restore has made them after the checkpoint was taken there, or found them in its own store alone. The caller holds
// the daemon.
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

// lookForLearned has all checkpoints looked at, once: an earlier daemon may have been killed before it had taken what
// was learned of one.
func (u *Uploads) lookForLearned(ctx context.Context) error {
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

// takeAllLearned takes to the bucket what restores have learned since it has the checkpoints. again: something could
// not be taken.
func (u *Uploads) takeAllLearned(ctx context.Context) (again bool) {
	if !u.looked && u.lookForLearned(ctx) != nil {
		return true
	}
	var ids []string
	u.set(func() {
		for id := range u.learned {
			ids = append(ids, id)
		}
	})
	for _, id := range ids {
		u.set(func() { delete(u.learned, id) }) // what is learned from now on is looked at again
		err := u.takeLearned(ctx, id, func(name string, done, total int64) {
			u.set(func() { u.state.Name, u.state.Done, u.state.Total = name, done, total })
		})
		u.set(func() { u.state.Name, u.state.Done, u.state.Total = "", 0, 0 })
		if err != nil {
			u.set(func() { u.learned[id] = true })
			if ctx.Err() == nil {
				u.o.Log.Warn("a profile or hot set is not uploaded, and is tried again", "checkpoint", id, "err", err)
			}
			return true
		}
	}
	return false
}

// takeLearned takes to the bucket what it lacks of what was learned of a checkpoint. It tells how much of the
// checkpoint's hot set it has dealt with, in bytes.
func (u *Uploads) takeLearned(ctx context.Context, id string, tell func(name string, done, total int64)) error {
	if stands, _ := u.o.Remote.Has(id); !stands {
		return nil // it goes there with the checkpoint, if that does
	}
	here, there := remotes.LearnedIn(u.o.Store, id), u.o.Remote.HasLearned(id)
	hot := here.Hot != 0 && here.Hot != there.Hot
	if here.Profile == 0 || here.Profile == there.Profile && !hot {
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
	if err != nil {
		return err
	}
	there.Profile = here.Profile
	u.o.Remote.NoteLearned(id, there)
	u.o.Log.Info("profile uploaded", "checkpoint", id)
	if !hot {
		return nil
	}
	var sent, total int64
	info, err := u.o.Store.Info(id)
	if err != nil {
		return nil // removed meanwhile
	}
	if f, err := u.o.Store.HotSet(id); err == nil {
		total = f.Size()
		f.Close()
	}
	done, err := s.PushHot(ctx, u.o.Store, id, p, func(bytes int64) {
		sent += bytes
		tell(info.Name, sent, total)
	})
	if done {
		there.Hot = here.Hot
		u.o.Remote.NoteLearned(id, there)
		u.o.Log.Info("hot set uploaded", "checkpoint", id)
	}
	return err
}
