package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// RestoreRequest asks for everything that CRIU needs to restore a checkpoint. Directories go over a connection of their own, see handed.go.
type RestoreRequest struct {
	ID         string `json:"id"`
	Checkpoint string `json:"checkpoint"`
	Rate       int64  `json:"rate,omitempty"`
	RecordGPU  bool   `json:"record_gpu,omitempty"` // see Serving
	Wait       bool   `json:"wait,omitempty"`       // answer when resident
	// Instead is the ID of an attempt that failed because its daemon was killed; nobody waits for it any more.
	Instead string `json:"instead,omitempty"`
}

// Prepared is what a restore can start with.
type Prepared struct {
	ID         string `json:"id"`
	Checkpoint string `json:"checkpoint"` // its name
	Images     string `json:"-"`          // the image directory, as long as the caller is asked to run CRIU
	Work       string `json:"-"`          // CRIU's work directory
	Total      int64  `json:"total"`      // bytes that are filled in on demand
	Profile    bool   `json:"profile"`    // one is replayed
	AMDGPU     bool   `json:"amdgpu"`     // there are images of CRIU's amdgpu plugin
}

// verdict is what the caller says when CRIU is done.
type verdict struct {
	OK bool `json:"ok"`
}

// awaitVerdict waits for the caller's word: whether CRIU did its part, and false for said when the caller is gone.
func awaitVerdict(env *Env) (ok, said bool) {
	var v verdict
	line, err := bufio.NewReader(env.In).ReadBytes('\n')
	if err != nil || json.Unmarshal(line, &v) != nil {
		return false, false
	}
	return v.OK, true
}

// say sends one line of JSON to the caller.
func say(env *Env, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = env.Out.Write(append(line, '\n'))
	return err
}

// errCallerFailed: CRIU did not do its part, or who ran it is gone.
var errCallerFailed = errors.New("criu failed, or was given up")

// needTalk refuses operations that need a daemon and a caller that answers.
func needTalk(env *Env, op string) error {
	if env.Daemon == nil || env.In == nil || env.Out == nil {
		return &index.Error{Class: index.Unsupported, Op: op, Err: errors.New("this needs a daemon")}
	}
	return nil
}

// Restore mounts a checkpoint for one restore and serves its memory; it says so by a line with Prepared. The caller runs CRIU and answers with its verdict. Then the mount
// goes, and the rest goes on in the daemon; when CRIU failed, or the caller is gone without a word, nothing is left.
var Restore = define("restore", func(ctx context.Context, env *Env, q RestoreRequest) (RestoreStatus, error) {
	if err := needTalk(env, "restore"); err != nil {
		return RestoreStatus{}, err
	}
	return env.Daemon.restore(ctx, env, q)
})

func (d *Daemon) restore(ctx context.Context, env *Env, q RestoreRequest) (RestoreStatus, error) {
	h, err := d.handedFor(ctx, q.ID, true)
	if err != nil {
		return RestoreStatus{}, err
	}
	defer h.close()
	if q.Instead != "" {
		d.forget(q.Instead)
	}
	c, err := d.store.Checkpoint(q.Checkpoint)
	if err != nil {
		return RestoreStatus{}, err
	}
	// Mounting and reading the page maps take about the same time.
	images := "restore " + q.ID
	mounted := make(chan error, 1)
	go func() {
		_, err := d.AddMount(ctx, MountRequest{Dir: images, Checkpoint: c.Info().ID, Private: true})
		mounted <- err
	}()
	r, err := d.startRestore(Serving{ID: q.ID, Checkpoint: q.Checkpoint, Rate: q.Rate, RecordGPU: q.RecordGPU}, fdPath(h.work), nil)
	merr := <-mounted
	ok := false
	if err = errors.Join(err, merr); err == nil {
		if m := d.mountAt(images); m == nil {
			err = errStopping()
		} else {
			err = h.give(m.m.Root())
		}
		if err == nil {
			err = say(env, Prepared{ID: q.ID, Checkpoint: r.name, Total: r.feed.Status().TotalBytes, Profile: r.replays, AMDGPU: hasAMDGPU(c)})
		}
		if err == nil {
			ok, _ = awaitVerdict(env)
		}
	}
	if r != nil {
		r.mu.Lock()
		r.resumed = true
		if m := d.mountAt(images); m != nil {
			r.images = m.m.Stats().ReadBytes
		}
		r.mu.Unlock()
		if !ok {
			r.feed.Abandon()
			<-r.done
		}
	}
	if merr == nil && ok {
		// Nobody has to wait for that. The mount keeps the daemon.
		d.wg.Go(func() {
			if err := d.dropMount(images); err != nil {
				d.log.Error("could not clear up after a restore", "restore", q.ID, "error", err)
			}
		})
	} else if merr == nil {
		err = errors.Join(err, d.dropMount(images))
	}
	switch {
	case err != nil:
		return RestoreStatus{}, err
	case !ok:
		return r.status(), errCallerFailed
	case q.Wait:
		return r.wait(ctx, env.Progress)
	}
	return r.status(), nil
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
var RestoreWait = define("restore-wait", func(ctx context.Context, env *Env, q RestoreWaitRequest) (RestoreStatus, error) {
	if env.Daemon != nil {
		env.Daemon.mu.Lock()
		r := env.Daemon.restores[q.ID]
		env.Daemon.mu.Unlock()
		if r != nil {
			return r.wait(ctx, env.Progress)
		}
	}
	return RestoreStatus{}, &index.Error{Class: index.NotFound, Op: "restore", Err: fmt.Errorf("there is no restore %q in progress", q.ID)}
})

// LazyPagesRequest asks for a lazy-pages server for a checkpoint that is restored from another mount. Its work directory goes over a connection of its own, see handed.go.
type LazyPagesRequest struct {
	ID         string `json:"id"`
	Checkpoint string `json:"checkpoint"` // name, tag or ID
	Rate       int64  `json:"rate,omitempty"`
	// Log asks for what the daemon logs of it, from this level on, as lines with LogLine.
	Log *slog.Level `json:"log,omitempty"`
}

// LogLine is a line of the daemon's log that a client asked for.
type LogLine struct {
	Log string `json:"log"`
}

// logLines passes a log on to the caller until it is closed.
type logLines struct {
	env *Env
	mu  sync.Mutex
	end bool
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end {
		return len(b), nil
	}
	return len(b), say(l.env, LogLine{string(b)})
}

// say says something else to the caller, in between.
func (l *logLines) say(v any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return say(l.env, v)
}

func (l *logLines) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = true
}

// LazyPages serves a restore's memory; it says that it listens by a line with Prepared, and answers when all is resident.
var LazyPages = define("lazy-pages", func(ctx context.Context, env *Env, q LazyPagesRequest) (RestoreStatus, error) {
	if env.Daemon == nil || env.Out == nil {
		return RestoreStatus{}, &index.Error{Class: index.Unsupported, Op: "lazy-pages", Err: errors.New("this needs a daemon")}
	}
	d := env.Daemon
	h, err := d.handedFor(ctx, q.ID, true)
	if err != nil {
		return RestoreStatus{}, err
	}
	defer h.close()
	lines := &logLines{env: env}
	defer lines.close()
	var log slog.Handler
	if q.Log != nil {
		log = slog.NewTextHandler(lines, &slog.HandlerOptions{Level: q.Log})
	}
	r, err := d.startRestore(Serving{ID: q.ID, Checkpoint: q.Checkpoint, Rate: q.Rate}, fdPath(h.work), log)
	if err != nil {
		return RestoreStatus{}, err
	}
	if err := lines.say(Prepared{ID: r.ID, Checkpoint: r.name, Total: r.feed.Status().TotalBytes, Profile: r.replays}); err != nil {
		r.feed.Retire()
		return r.status(), err
	}
	st, err := r.wait(ctx, env.Progress)
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		// Whoever asked is gone. A restore that has begun goes on.
		r.feed.Retire()
	}
	return st, err
})

// passLines calls f with each line that is written to it.
type passLines struct {
	buf []byte
	f   func([]byte)
}

func (p *passLines) Write(b []byte) (int, error) {
	p.buf = append(p.buf, b...)
	for {
		line, rest, ok := bytes.Cut(p.buf, []byte{'\n'})
		if !ok {
			return len(b), nil
		}
		p.f(line)
		p.buf = rest
	}
}

// converse runs an operation that says Prepared first. Once it has, run does the caller's part, in another goroutine; then the verdict is sent.
func converse[Req, Res any](ctx context.Context, s *Session, op *Op[Req, Res], req Req, run func(context.Context, Prepared) error, progress func(wire.Progress)) (res Res, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, answer := io.Pipe()
	defer in.Close()
	// net/http waits for a body that is being read, also when the daemon or ctx has ended.
	defer s.client.onEnd(func() { answer.CloseWithError(wire.ErrGone) })()
	defer context.AfterFunc(ctx, func() { answer.CloseWithError(ctx.Err()) })()
	ran := make(chan error, 1)
	started := false
	out := &passLines{f: func(line []byte) {
		var p Prepared
		if json.Unmarshal(line, &p) != nil || started {
			return
		}
		started = true
		go func() {
			err := run(ctx, p)
			v, _ := json.Marshal(verdict{OK: err == nil})
			answer.Write(append(v, '\n'))
			answer.Close()
			ran <- err
		}()
	}}
	res, err = op.Do(ctx, s, req, wire.Streams{In: in, Out: out, Progress: progress})
	if !started {
		return res, err
	}
	in.Close() // the daemon may be gone without having read the verdict
	if err != nil && !errors.Is(err, wire.ErrGone) {
		cancel() // without its daemon CRIU fails by itself, or has done all
	}
	// CRIU knows of a full disk, but not which, nor of the floor.
	if index.ClassOf(err) == index.NoSpace {
		<-ran
		return res, err
	}
	// CRIU's own error tells more than that it failed.
	if rerr := <-ran; rerr != nil && !errors.Is(err, wire.ErrGone) {
		return res, rerr
	} else if rerr != nil {
		return res, fmt.Errorf("%w (%w)", err, rerr)
	}
	return res, err
}
