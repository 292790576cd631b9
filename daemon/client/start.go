package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/mounts"
	"github.com/gpucr/gpucr-fs/daemon/restores"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/talk"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/scratch"
)

// StartFunc makes a daemon that waits for the one who started it, as Spawn does.
type StartFunc = func(context.Context) (mounts.Result, error)

// ConnectOrStart gives access through the daemon of the store at dir; where none runs, start makes one. It waits for
// others that hold the store as WhileInUse does.
func ConnectOrStart(ctx context.Context, dir string, start StartFunc) (s *Session, err error) {
	err = WhileInUse(ctx, dir, func() error {
		for {
			found, ok, err := ConnectDaemon(ctx, dir)
			if s = found; ok || err != nil {
				return err
			}
			if _, err := start(ctx); err != nil {
				return err
			}
		}
	})
	return s, err
}

// newID makes a name for a restore.
func newID() string {
	var b [8]byte
	rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// attempts is how often a restore is tried whose daemon is killed before its processes run, or that asks for it.
const attempts = 4

// ErrAgain is wrapped by an error of [RestoreOptions.Run] that asks for another call. Run has then left nothing behind.
var ErrAgain = errors.New("to be tried again")

// RestoreOptions say how to restore.
type RestoreOptions struct {
	Checkpoint string
	Work       string // CRIU's work directory; a private one when empty
	Rate       int64
	RecordGPU  bool // see restores.Serving
	Wait       bool // until resident
	CopyShared bool // see service.RestoreRequest
	Copies     int  // likewise
	// Early lets Run be called before memory can be brought. It must wait for Prepared.Served then.
	Early bool
	// PIDNamespace makes the pid namespace for the next call of Run and gives its number. Where it is nil the namespace
	// stays the same.
	PIDNamespace func() uint64
	// Start makes a daemon.
	Start StartFunc
	// Run restores with CRIU; it returns when the processes run. When the daemon is killed before that, it is called
	// again, and when it fails with ErrAgain.
	Run      func(context.Context, talk.Prepared) error
	Progress func(wire.Progress)
	// Again is told why Run is about to be called once more.
	Again func(error)
}

// RestoreFrom restores a checkpoint of the store at dir.
func RestoreFrom(ctx context.Context, dir string, o RestoreOptions) (restores.Status, error) {
	former := ""
	for try := 1; ; try++ {
		st, again, err := restoreOnce(ctx, dir, o, &former)
		if !again || try == attempts || ctx.Err() != nil {
			return st, err
		}
		o.Again(err)
		// What CRIU had made of the processes has ended; somebody has to reap it before their pids are free.
		select {
		case <-time.After(time.Duration(try) * 100 * time.Millisecond):
		case <-ctx.Done():
			return st, ctx.Err()
		}
	}
}

// restoreOnce tries to restore, instead of the former attempt; again is set when the daemon was killed and nothing
// runs.
func restoreOnce(
	ctx context.Context,
	dir string,
	o RestoreOptions,
	former *string,
) (st restores.Status, again bool, err error) {
	s, err := ConnectOrStart(ctx, dir, o.Start)
	if err != nil {
		return st, errors.Is(err, wire.ErrGone), err
	}
	defer s.Close()
	q := service.RestoreRequest{
		ID: newID(), Checkpoint: o.Checkpoint, Rate: o.Rate, RecordGPU: o.RecordGPU, Wait: o.Wait, Instead: *former,
		CopyShared: o.CopyShared, Copies: o.Copies, Early: o.Early,
	}
	if o.PIDNamespace != nil {
		q.PIDNamespace = o.PIDNamespace()
	}
	work := o.Work
	if work == "" {
		own, merr := scratch.Make(os.TempDir(), "gpucr-fs-work-")
		if merr != nil {
			return st, false, merr
		}
		work = own.Path()
		defer func() { err = errors.Join(err, own.Close()) }()
	}
	dirs, err := talk.Pass(ctx, dir, q.ID, work)
	if err != nil {
		return st, errors.Is(err, wire.ErrGone), err
	}
	defer dirs.Close()
	*former = q.ID
	runs := false
	var prepared talk.Prepared
	var total int64
	st, err = converse(ctx, s, service.Restore, q, func(ctx context.Context, p talk.Prepared) error {
		defer dirs.LetGo()
		prepared = p
		err := dirs.Take(&p)
		if err == nil {
			p.Work = work
			err = o.Run(ctx, p)
		}
		runs = err == nil
		return err
	}, func(s talk.Served) { total = s.Total }, o.Progress)
	if err == nil {
		return st, false, nil
	}
	gone := errors.Is(err, wire.ErrGone)
	if gone && runs {
		prepared.Total = total
		st, err = o.rejoin(ctx, dir, q.ID, prepared)
	}
	return st, !runs && (gone || errors.Is(err, ErrAgain)), err
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// rejoin finds a restore again whose daemon was killed after its processes ran. When the successor is done before it
// is found, all is well, or the guardian has ended the processes: that shows in them. A status that is not the
// successor's has no Resident, and as Missing the most that there may be.
func (o *RestoreOptions) rejoin(ctx context.Context, dir, id string, p talk.Prepared) (restores.Status, error) {
	st := restores.Status{ID: id, Checkpoint: p.Checkpoint, Total: p.Total, Profile: p.Profile, Adopted: true}
	if !o.Wait {
		st.Missing = p.Total
		return st, nil
	}
	last := time.Now().Add(daemonTimeout)
	for end := time.Now().Add(wire.Handover); time.Now().Before(end) &&
		ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		s, ok, err := ConnectDaemon(ctx, dir)
		if err != nil {
			return st, err
		}
		if !ok {
			if index.IsHeld(dir) { // it opens the store
				end = earlier(last, time.Now().Add(wire.Handover))
			}
			continue
		}
		found, err := service.RestoreWait.Do(
			ctx, s, service.RestoreWaitRequest{ID: id}, wire.Streams{Progress: o.Progress},
		)
		s.Close()
		if index.ClassOf(err) != index.NotFound && !errors.Is(err, wire.ErrGone) {
			return found, err
		}
	}
	return st, ctx.Err()
}

// ServeLazyPages has the daemon of the store at dir, which has it mounted, serve a restore's memory, and returns when
// all is resident. ready is called when CRIU may connect. When ctx ends before CRIU has come nothing is left;
// afterwards the daemon goes on. work is CRIU's work directory; log takes the log that q asks for.
func ServeLazyPages(
	ctx context.Context,
	dir, work string,
	q service.LazyPagesRequest,
	ready func() error,
	progress func(wire.Progress),
	log io.Writer,
) (restores.Status, error) {
	s, ok, err := ConnectDaemon(ctx, dir)
	if err == nil && !ok {
		err = &index.Error{
			Class:      index.NotFound,
			Op:         "lazy-pages",
			Checkpoint: q.Checkpoint,
			Err:        errors.New("the daemon of this mount is gone"),
			Hint:       "unmount and mount again",
		}
		if _, serr := os.Stat(dir); serr != nil {
			err = &index.Error{
				Class:      index.NotFound,
				Op:         "lazy-pages",
				Checkpoint: q.Checkpoint,
				Err:        fmt.Errorf("the store of this mount is not seen from here: %w", serr),
				Hint:       "make the store's folder visible under that name in this mount namespace",
			}
		}
	}
	if err != nil {
		return restores.Status{}, err
	}
	defer s.Close()
	q.ID = newID()
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	dirs, err := talk.Pass(ctx, dir, q.ID, work)
	if err != nil {
		return restores.Status{}, err
	}
	defer dirs.Close()
	var rerr error
	listens := false
	out := talk.NewLines(func(line []byte) {
		var l talk.LogLine
		switch err := json.Unmarshal(line, &l); {
		case err == nil && l.Log != "":
			_, rerr = io.WriteString(log, l.Log)
		case !listens:
			listens, rerr = true, ready()
		}
		if rerr != nil {
			cancel()
		}
	})
	st, err := service.LazyPages.Do(asking, s, q, wire.Streams{Out: out, Progress: progress})
	if rerr != nil {
		return st, rerr
	}
	if errors.Is(err, wire.ErrGone) {
		o := RestoreOptions{Wait: true, Progress: progress}
		return o.rejoin(ctx, dir, q.ID, talk.Prepared{})
	}
	return st, err
}

// DumpOptions say how to dump.
type DumpOptions struct {
	Name   string
	Tags   []string
	Labels map[string]string
	PID    int // of the first process
	// Start makes a daemon.
	Start StartFunc
	// Run dumps with CRIU into the directory.
	Run func(ctx context.Context, images string) error
	// Progress is told how many bytes CRIU has written.
	Progress func(wire.Progress)
}

// DumpInto dumps into a new checkpoint of the store at dir.
func DumpInto(ctx context.Context, dir string, o DumpOptions) (service.Brief, error) {
	s, err := ConnectOrStart(ctx, dir, o.Start)
	if err != nil {
		return service.Brief{}, err
	}
	defer s.Close()
	q := service.DumpRequest{ID: newID(), Name: o.Name, Tags: o.Tags, Labels: o.Labels, PID: o.PID}
	dirs, err := talk.Pass(ctx, dir, q.ID, "")
	if err != nil {
		return service.Brief{}, err
	}
	defer dirs.Close()
	return converse(ctx, s, service.Dump, q, func(ctx context.Context, p talk.Prepared) error {
		defer dirs.LetGo()
		if err := dirs.Take(&p); err != nil {
			return err
		}
		return o.Run(ctx, p.Images)
	}, func(talk.Served) {}, o.Progress)
}
