package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"

	"github.com/gpucr/gpucr-fs/daemon/lifetime"
	"github.com/gpucr/gpucr-fs/daemon/mounts"
	"github.com/gpucr/gpucr-fs/daemon/restores"
	"github.com/gpucr/gpucr-fs/daemon/talk"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/restore/criuimg"
	"github.com/gpucr/gpucr-fs/restore/uffd"
)

// RestoreRequest asks for everything that CRIU needs to restore a checkpoint. Directories go over a connection of
// their own, see package talk.
type RestoreRequest struct {
	ID         string `json:"id"`
	Checkpoint string `json:"checkpoint"`
	Rate       int64  `json:"rate,omitempty"`
	RecordGPU  bool   `json:"record_gpu,omitempty"` // see restores.Serving
	Wait       bool   `json:"wait,omitempty"`       // answer when resident
	Copies     int    `json:"copies,omitempty"`     // how many are restored at once
	// Early lets CRIU be started before the daemon can bring memory: Prepared is said then with Early set, and the
	// caller keeps CRIU from letting tasks run until Served is said.
	Early bool `json:"early,omitempty"`
	// CopyShared gives each process its own copy of what it shared with the one it was forked from.
	CopyShared bool `json:"copy_shared,omitempty"`
	// Instead is the ID of an attempt that failed because its daemon was killed; nobody waits for it any more.
	Instead string `json:"instead,omitempty"`
	// PIDNamespace is the number of the pid namespace to restore in, 0 for the one that was dumped: see
	// criuimg.FilesFor.
	PIDNamespace uint64 `json:"pid_namespace,omitempty"`
}

// needTalk refuses operations that need a daemon and a caller that answers.
func needTalk(env *Env, op string) error {
	if env.Daemon == nil || env.In == nil || env.Out == nil {
		return &index.Error{Class: index.Unsupported, Op: op, Err: errors.New("this needs a daemon")}
	}
	return nil
}

// Restore mounts a checkpoint for one restore and serves its memory; it says so by lines with Prepared and Served. The
// caller runs CRIU and answers with its verdict. Then the mount goes, and the rest goes on in the daemon; if CRIU
// failed, or the caller is gone without a verdict, nothing is left.
var Restore = define("restore", func(ctx context.Context, env *Env, q RestoreRequest) (restores.Status, error) {
	if err := needTalk(env, "restore"); err != nil {
		return restores.Status{}, err
	}
	return restoreHere(ctx, env, q)
})

func restoreHere(ctx context.Context, env *Env, q RestoreRequest) (restores.Status, error) {
	d := env.Daemon
	h, err := d.Talks.For(ctx, q.ID, true)
	if err != nil {
		return restores.Status{}, err
	}
	defer h.Close()
	if q.Instead != "" {
		d.Restores.Forget(q.Instead)
	}
	c, err := env.Checkpoint(ctx, q.Checkpoint)
	if err != nil {
		return restores.Status{}, err
	}
	release, err := c.Keep() // CRIU reads it, too
	if err != nil {
		return restores.Status{}, err
	}
	defer release()
	// Mounting and reading the page maps take about the same time.
	images := "restore " + q.ID
	mounting := make(chan error, 1)
	go func() {
		_, err := d.Mounts.Add(ctx, mounts.Request{Dir: images, Checkpoint: c.Info().ID, Private: true})
		mounting <- err
	}()
	mounted := sync.OnceValue(func() error { return <-mounting })
	prepared := false // CRIU may have been started
	prepare := func(y restores.Ready) error {
		if err := mounted(); err != nil {
			return err
		}
		m := d.Mounts.At(images)
		if m == nil {
			return lifetime.ErrStopping()
		}
		other, err := instead(c, y, q.PIDNamespace)
		if len(other) > 0 {
			m.Instead(other, len(y.Inherited) > 0)
		}
		if err == nil {
			err = h.Give(m.Root())
		}
		if err != nil {
			return err
		}
		prepared = true
		return talk.Say(env.Out, talk.Prepared{ID: q.ID, Checkpoint: y.Name, Profile: y.Replays, AMDGPU: hasAMDGPU(c),
			Early: q.Early})
	}
	s := restores.Serving{ID: q.ID, Checkpoint: q.Checkpoint, Rate: q.Rate, RecordGPU: q.RecordGPU, Copies: q.Copies}
	var early func(restores.Ready) error
	if q.Early {
		early = prepare
	}
	r, err := d.Restores.Start(s, h.Work(), nil, !q.CopyShared, early)
	merr := mounted()
	switch {
	case err == nil && !q.Early:
		err = prepare(r.Ready())
	case err != nil && merr != nil && !errors.Is(err, merr):
		err = errors.Join(err, merr)
	}
	ok := false
	if prepared {
		served := talk.Served{Failed: err != nil, Again: errors.Is(err, uffd.ErrGuardian)}
		if r != nil {
			served.Total = r.Total()
		}
		serr := talk.Say(env.Out, served)
		if serr == nil {
			// If it failed, the caller ends CRIU and lets go of the images before it answers.
			ran, _ := talk.AwaitVerdict(env.In)
			ok = ran && err == nil
		} else if err == nil {
			err = serr
		}
	}
	if r != nil {
		var read int64
		if m := d.Mounts.At(images); m != nil {
			read = m.Stats().ReadBytes
		}
		r.Resumed(read)
		if !ok {
			r.Abandon()
		}
	}
	if merr == nil && ok {
		d.Mounts.DropLater(images, "restore", q.ID) // nobody has to wait for that
	} else if merr == nil {
		err = errors.Join(err, d.Mounts.Drop(images))
	}
	switch {
	case err != nil:
		return restores.Status{}, err
	case !ok:
		return r.Status(), talk.ErrCallerFailed
	case q.Wait:
		return r.Wait(ctx, env.Progress)
	}
	return r.Status(), nil
}

// instead gives the images that CRIU has to see in place of those of the same name.
func instead(c *index.Checkpoint, y restores.Ready, namespace uint64) (map[string][]byte, error) {
	other := maps.Clone(y.Inherited)
	if namespace == 0 {
		return other, nil
	}
	files, err := criuimg.FilesFor(c.FS(), namespace)
	if err != nil || files == nil {
		return other, err
	}
	if other == nil {
		other = map[string][]byte{}
	}
	other["files.img"] = files
	return other, nil
}

// hasAMDGPU tells whether a checkpoint has images of CRIU's amdgpu plugin.
func hasAMDGPU(c *index.Checkpoint) bool {
	for _, e := range c.Entries() {
		if ok, err := filepath.Match("amdgpu-*.img", e.Path); ok && err == nil {
			return true
		}
	}
	return false
}

// RestoreWaitRequest names a restore in progress.
type RestoreWaitRequest struct {
	ID string `json:"id"`
}

// RestoreWait waits until a restore is resident. Class NotFound when this daemon has none of that ID, or no more.
var RestoreWait = define(
	"restore-wait",
	func(ctx context.Context, env *Env, q RestoreWaitRequest) (restores.Status, error) {
		if env.Daemon != nil {
			if r := env.Daemon.Restores.Of(q.ID); r != nil {
				return r.Wait(ctx, env.Progress)
			}
		}
		return restores.Status{}, &index.Error{Class: index.NotFound, Op: "restore",
			Err: fmt.Errorf("there is no restore %q in progress", q.ID)}
	},
)

// LazyPagesRequest asks for a lazy-pages server for a checkpoint that is restored from another mount. Its work
// directory goes over a connection of its own, see package talk.
type LazyPagesRequest struct {
	ID         string `json:"id"`
	Checkpoint string `json:"checkpoint"` // name, tag or ID
	Rate       int64  `json:"rate,omitempty"`
	// Log asks for what the daemon logs of it, from this level on, as lines with LogLine.
	Log *slog.Level `json:"log,omitempty"`
}

// LazyPages serves a restore's memory; it says that it listens by a line with Prepared, and answers when all is
// resident.
var LazyPages = define("lazy-pages", func(ctx context.Context, env *Env, q LazyPagesRequest) (restores.Status, error) {
	if env.Daemon == nil || env.Out == nil {
		return restores.Status{}, &index.Error{Class: index.Unsupported, Op: "lazy-pages",
			Err: errors.New("this needs a daemon")}
	}
	d := env.Daemon
	h, err := d.Talks.For(ctx, q.ID, true)
	if err != nil {
		return restores.Status{}, err
	}
	defer h.Close()
	lines := talk.NewLog(env.Out)
	defer lines.End()
	var log slog.Handler
	if q.Log != nil {
		log = slog.NewTextHandler(lines, &slog.HandlerOptions{Level: q.Log})
	}
	s := restores.Serving{ID: q.ID, Checkpoint: q.Checkpoint, Rate: q.Rate}
	r, err := d.Restores.Start(s, h.Work(), log, false, nil)
	if err != nil {
		return restores.Status{}, err
	}
	if err := lines.Say(
		talk.Prepared{ID: r.ID, Checkpoint: r.Name(), Total: r.Total(), Profile: r.Replays()}); err != nil {
		r.Retire()
		return r.Status(), err
	}
	st, err := r.Wait(ctx, env.Progress)
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		// The client is gone. A restore that has begun goes on.
		r.Retire()
	}
	return st, err
})
