package service

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpucr/gpucr-fs/daemon/profiles"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/feed"
)

// ProfileRequest names a checkpoint by name, tag or ID.
type ProfileRequest struct {
	Checkpoint string `json:"checkpoint"`
}

// ProfileFile is what a profile has of one file.
type ProfileFile struct {
	Name    string `json:"name"`
	Touches int    `json:"touches"` // runs of pages
	Bytes   int64  `json:"bytes"`
}

// ProfileTouch is one run of pages, in the order of first touches.
type ProfileTouch struct {
	File string `json:"file"`
	Off  int64  `json:"off"`
	Len  int64  `json:"len"`
}

// ProfileResult describes the profile of a checkpoint.
type ProfileResult struct {
	Checkpoint string         `json:"checkpoint"`
	Bytes      int64          `json:"bytes"`
	Files      []ProfileFile  `json:"files"`
	Touches    []ProfileTouch `json:"touches"`
	Anew       bool           `json:"anew"` // the next restore records a new one
}

// ShowProfile gives a checkpoint's profile. Class NotFound when it has none.
var ShowProfile = define("profile-show", func(_ context.Context, env *Env, q ProfileRequest) (ProfileResult, error) {
	name, p, again, err := profiles.Stored(env.Store, q.Checkpoint)
	res := ProfileResult{Checkpoint: name, Anew: again, Files: []ProfileFile{}, Touches: []ProfileTouch{}}
	if err != nil || p == nil {
		return res, err
	}
	res.Bytes = p.Bytes()
	for _, f := range p.Files {
		res.Files = append(res.Files, ProfileFile{Name: f})
	}
	for _, t := range p.Touches {
		res.Files[t.File].Touches++
		res.Files[t.File].Bytes += t.Len
		res.Touches = append(res.Touches, ProfileTouch{p.Files[t.File], t.Off, t.Len})
	}
	return res, nil
})

// RecordProfile has the next restore of a checkpoint record a new profile. The present one is kept until then, and
// not replayed.
var RecordProfile = define(
	"profile-record",
	func(_ context.Context, env *Env, q ProfileRequest) (ProfileResult, error) {
		name, p, _, err := profiles.Stored(env.Store, q.Checkpoint)
		if err != nil && index.ClassOf(err) != index.NotFound && index.ClassOf(err) != index.Corrupt || name == "" {
			return ProfileResult{}, err
		}
		return ProfileResult{Checkpoint: name, Anew: true}, env.Store.SetProfile(q.Checkpoint, profiles.Anew(p))
	},
)

// ClearProfile removes a checkpoint's profile; the next restore records one. Clearing what is not there is no error.
var ClearProfile = define("profile-clear", func(_ context.Context, env *Env, q ProfileRequest) (ProfileResult, error) {
	c, err := env.Store.Checkpoint(q.Checkpoint)
	if err != nil {
		return ProfileResult{}, err
	}
	return ProfileResult{Checkpoint: c.Info().Name}, env.Store.SetProfile(c.Info().ID, nil)
})

// CopyProfileRequest names two checkpoints.
type CopyProfileRequest struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// CopyProfileResult says how much of a profile can serve.
type CopyProfileResult struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Bytes  int64  `json:"bytes"`  // of the profile
	Serves int64  `json:"serves"` // of these, what To has
}

// CopyProfile gives a checkpoint the profile of another, of which it is a descendant or a sibling. Ranges that it does
// not have are left out when the profile is replayed.
var CopyProfile = define(
	"profile-copy",
	func(_ context.Context, env *Env, q CopyProfileRequest) (CopyProfileResult, error) {
		from, p, _, err := profiles.Stored(env.Store, q.From)
		if err != nil {
			return CopyProfileResult{}, err
		}
		if p == nil {
			return CopyProfileResult{}, &index.Error{Class: index.NotFound, Op: "copy profile", Checkpoint: from,
				Err: errors.New("no profile"), Hint: "the next restore records one"}
		}
		c, err := env.Store.Checkpoint(q.To)
		if err != nil {
			return CopyProfileResult{}, err
		}
		res := CopyProfileResult{From: from, To: c.Info().Name, Bytes: p.Bytes()}
		for _, r := range p.Ranges(filesOf(c)) {
			res.Serves += r.Len
		}
		if res.Serves == 0 {
			return res, &index.Error{Class: index.Invalid, Op: "copy profile", Checkpoint: res.To,
				Err: fmt.Errorf("the profile of %s names nothing that it has", from)}
		}
		return res, env.Store.SetProfile(c.Info().ID, p.Encode())
	},
)

// filesOf gives the names and sizes of a checkpoint's regular files.
func filesOf(c *index.Checkpoint) (names []string, sizes []int64) {
	for _, e := range c.Entries() {
		if e.Mode.IsRegular() {
			names, sizes = append(names, e.Path), append(sizes, e.Size)
		}
	}
	return names, sizes
}

// WarmupRequest asks for a checkpoint in memory.
type WarmupRequest struct {
	Checkpoint string `json:"checkpoint"`
	Hot        bool   `json:"hot,omitempty"`  // only what its profile names
	Rate       int64  `json:"rate,omitempty"` // bytes a second; 0 is no bound
}

// WarmupResult says what was read.
type WarmupResult struct {
	Checkpoint string `json:"checkpoint"`
	Bytes      int64  `json:"bytes"` // zero runs not counted
	Zero       int64  `json:"zero"`
}

// Warmup reads a checkpoint, or its hot set, so that its packs are in the page cache and, as far as it has room, in
// the daemon's. Class NotFound when the hot set is asked for and there is no profile.
var Warmup = define("warmup", func(ctx context.Context, env *Env, q WarmupRequest) (res WarmupResult, err error) {
	c, err := env.Store.Checkpoint(q.Checkpoint)
	if err != nil {
		return res, err
	}
	res.Checkpoint = c.Info().Name
	names, sizes := filesOf(c)
	var want []prefetch.Range
	if q.Hot {
		_, p, _, err := profiles.Stored(env.Store, c.Info().ID)
		if err != nil {
			return res, err
		}
		if p != nil {
			want = p.Ranges(names, sizes)
		}
	} else {
		for i, n := range sizes {
			want = append(want, prefetch.Range{File: i, Len: n})
		}
	}
	var total int64
	for _, r := range want {
		total += r.Len
	}
	images := feed.Stored{Store: env.Store, Ref: c.Info().ID}
	st, err := feed.Warm(
		ctx, images, names, want, q.Rate, env.Log,
		func(done int64) { env.Progress(wire.Progress{Done: min(done, total), Total: total, Unit: "bytes"}) },
	)
	if err != nil {
		return res, err
	}
	res.Bytes, res.Zero = st.SweepBytes-st.ZeroBytes, st.ZeroBytes
	if st.FailedBytes > 0 {
		return res, &index.Error{Class: index.Corrupt, Op: "warm up", Checkpoint: res.Checkpoint,
			Err:  fmt.Errorf("%d bytes cannot be read", st.FailedBytes),
			Hint: "gpucr-fs verify STORE names what is damaged"}
	}
	return res, nil
})
