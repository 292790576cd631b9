// Package uploads takes sealed checkpoints of a daemon's store to its remote store, in the background.
//
// One checkpoint at a time, oldest first; one that is being written begins to go there before it is sealed (early.go).
// What a killed daemon had begun its successor begins anew: what had come to the bucket is abandoned there. A
// checkpoint that came from the bucket, or was removed there, is not taken to it: who wants that says sync.
//
// It holds the daemon from the moment of a seal until nothing is left to do, or nothing can be done: when the bucket
// does not answer it lets the daemon go, and tries again later while there is one.
//
// # Lock order
//
// Uploads.mu, lifetime.Lifetime.mu. Nothing else is called while mu is held.
package uploads

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/lifetime"
	"github.com/gpucr/gpucr-fs/daemon/remotes"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/remote"
)

// Options of uploads. All are needed.
type Options struct {
	Store    *index.Store
	Remote   *remotes.Remote
	Lifetime *lifetime.Lifetime
	Log      *slog.Logger
}

// firstPause and longestPause bound the time between attempts when the bucket does not take something.
const (
	firstPause   = 5 * time.Second
	longestPause = 5 * time.Minute
)

// State is what is being done.
type State struct {
	Waiting int    `json:"waiting"`             // checkpoints that the bucket lacks, the one under way included
	Name    string `json:"uploading,omitempty"` // the one under way, also where that is its hot set alone
	Done    int64  `json:"done"`                // bytes of its content that were dealt with, zeros left out
	Total   int64  `json:"total"`
	// Failed tells why the last attempt of the checkpoints that wait failed, by their names.
	Failed map[string]string `json:"failed,omitempty"`
}

// Uploads takes checkpoints to a bucket. Close ends it.
type Uploads struct {
	o       Options
	cancel  context.CancelFunc
	unsub   func()
	wake    chan struct{}
	changed chan struct{} // something may be written that was not before
	begun   atomic.Bool   // something was begun to be uploaded early
	joined  sync.WaitGroup

	mu          sync.Mutex
	held        bool // the daemon is held
	newlySealed bool // a checkpoint was sealed since the last look
	state       State
	id          string           // of the one under way
	failed      map[string]error // of the last attempt, by ids
	learned     map[string]bool  // ids of checkpoints whose profiles or hot sets may not be in the bucket
	looked      bool             // what earlier daemons have left is among them
	turn        chan struct{}    // closed and made anew whenever something has ended
}

// Start begins with what the bucket lacks already.
func Start(o Options) *Uploads {
	ctx, cancel := context.WithCancel(context.Background())
	u := &Uploads{o: o, cancel: cancel, wake: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		failed: map[string]error{}, learned: map[string]bool{}, turn: make(chan struct{})}
	u.unsub = o.Store.Subscribe(func(string) { u.signal() })
	u.signal()
	u.joined.Go(func() { u.run(ctx) })
	u.joined.Go(func() { u.watch(ctx) })
	return u
}

// Idle gives uploads that take only what Take asks for. They need no Close.
func Idle(s *index.Store, r *remotes.Remote, log *slog.Logger) *Uploads {
	return &Uploads{o: Options{Store: s, Remote: r, Log: log}, turn: make(chan struct{})}
}

// Close gives up what is under way, to be taken up by the next daemon.
func (u *Uploads) Close() {
	if u == nil {
		return
	}
	u.unsub()
	u.cancel()
	u.joined.Wait()
}

// signal has it look what there is to do, and holds the daemon until that is done: the caller still holds it.
func (u *Uploads) signal() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.newlySealed = true
	u.hold()
	for _, c := range []chan struct{}{u.wake, u.changed} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// hold holds the daemon if it stays for something else at this moment. Call with mu held.
func (u *Uploads) hold() {
	if !u.held {
		u.held = u.o.Lifetime.HoldAlong()
	}
}

func (u *Uploads) run(ctx context.Context) {
	defer u.release(true)
	pause := firstPause
	for {
		u.mu.Lock()
		u.newlySealed = false
		u.mu.Unlock()
		again := u.pass(ctx)
		again = u.takeAllLearned(ctx) || again
		u.o.Remote.SaveRequests()
		u.release(false)
		var timer <-chan time.Time
		if again {
			timer = time.After(pause)
			pause = min(2*pause, longestPause)
		} else {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
			return
		case <-u.wake:
		case <-timer:
		}
	}
}

// release lets the daemon go, unless there is something new to do.
func (u *Uploads) release(over bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.held && (over || !u.newlySealed) {
		u.held = false
		u.o.Lifetime.Release()
	}
	close(u.turn)
	u.turn = make(chan struct{})
}

// pullsEvery is how often it is looked whether a pull has ended.
const pullsEvery = 20 * time.Millisecond

// unknown gives the sealed checkpoints of which nothing is known in the bucket, oldest first.
func (u *Uploads) unknown(ctx context.Context) ([]index.Info, error) {
	for u.o.Remote.Pulling() { // what has come from the bucket is noted when its pull ends
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pullsEvery):
		}
	}
	if err := u.o.Remote.Noted(); err != nil {
		return nil, err
	}
	all, err := u.o.Store.Names(ctx)
	if err != nil {
		return nil, err
	}
	here := map[string]bool{}
	var out []index.Info
	for _, i := range all {
		here[i.ID] = true
		if _, known := u.o.Remote.Has(i.ID); i.State != index.Sealed || known {
			continue
		}
		if u.o.Remote.IsFrom(i) {
			// Its pull was killed before that was noted, or the note is lost. Whether it still stands is seen later.
			u.o.Remote.NoteStands(i.ID, i.Name)
			continue
		}
		out = append(out, i)
	}
	u.o.Remote.Forget(func(id string) bool { return !here[id] })
	return out, nil
}

// pass takes to the bucket what it lacks. again: something could not be taken.
func (u *Uploads) pass(ctx context.Context) (again bool) {
	list, err := u.unknown(ctx)
	if err != nil {
		if ctx.Err() == nil {
			u.o.Log.Error("it is not known what the remote store lacks", "err", err)
		}
		return ctx.Err() == nil
	}
	if len(list) == 0 {
		u.set(func() { u.state, u.failed = State{}, map[string]error{} })
		u.dropRemoved(ctx)
		return false
	}
	u.set(func() { u.state = State{Waiting: len(list)} })
	s, err := u.o.Remote.Store(ctx)
	if err == nil {
		err = s.Learn(ctx, u.o.Store)
	}
	u.dropRemoved(ctx)
	failed := map[string]error{}
	for i, info := range list {
		if err != nil { // of the bucket as a whole
			failed[info.ID] = err
			continue
		}
		u.set(func() {
			u.hold()
			u.id, u.state = info.ID, State{Waiting: len(list) - i, Name: info.Name, Total: info.Logical - info.Zero}
		})
		learned := remotes.LearnedIn(u.o.Store, info.ID)
		_, perr := s.PushTelling(ctx, u.o.Store, info.ID, func(done, total int64) {
			u.mu.Lock()
			u.state.Done, u.state.Total = done, total
			u.mu.Unlock()
		})
		switch {
		case perr == nil:
			u.o.Remote.NoteStands(info.ID, info.Name)
			u.o.Remote.NoteLearned(info.ID, learned)
			u.o.Log.Info("uploaded", "checkpoint", info.Name, "to", u.o.Remote.Address())
		case index.ClassOf(perr) == index.NotFound: // removed meanwhile
		default:
			failed[info.ID] = perr
			if class := index.ClassOf(perr); class != index.Exists && class != index.InUse && class != index.Corrupt {
				err = perr
			}
		}
	}
	u.set(func() {
		u.id, u.failed, u.state = "", failed, State{Waiting: len(failed)}
		for _, i := range list {
			if err := failed[i.ID]; err != nil {
				if u.state.Failed == nil {
					u.state.Failed = map[string]string{}
				}
				u.state.Failed[i.Name] = err.Error()
			}
		}
	})
	if ctx.Err() != nil {
		return false
	}
	for _, i := range list {
		if err := failed[i.ID]; err != nil {
			u.o.Log.Warn("not uploaded, and tried again later", "checkpoint", i.Name, "err", err)
		}
	}
	return len(failed) > 0
}

func (u *Uploads) set(fn func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	fn()
}

// State says what is being done.
func (u *Uploads) State() State {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.state
}

// Places of a sealed checkpoint.
const (
	Local     = "local"     // it is here alone, as far as is known here
	Uploading = "uploading" // it is on its way to the bucket
	Durable   = "durable"   // it stands in the bucket, unless another machine has removed it since
)

// Place says where a sealed checkpoint is: Local, Uploading or Durable; "" for one that is not sealed, and where u is
// nil, without a bucket.
func (u *Uploads) Place(i index.Info) string {
	if u == nil || i.State != index.Sealed {
		return ""
	}
	if stands, _ := u.o.Remote.Has(i.ID); stands {
		return Durable
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.id == i.ID {
		return Uploading
	}
	return Local
}

// Lacking gives the names of the sealed checkpoints that are not known to stand in the bucket, oldest first.
func (u *Uploads) Lacking(ctx context.Context) ([]string, error) {
	all, err := u.o.Store.Names(ctx)
	var names []string
	for _, i := range all {
		if p := u.Place(i); p == Local || p == Uploading {
			names = append(names, i.Name)
		}
	}
	return names, err
}

// Take takes a sealed checkpoint to the bucket. If that is under way already, it waits for the end.
func (u *Uploads) Take(ctx context.Context, s *remote.Store, ref string, tell func(done, total int64)) (
	remote.Pushed, error,
) {
	info, err := u.o.Store.Info(ref)
	if err == nil {
		err = u.wait(ctx, func() bool { return u.id == info.ID }, func(st State) { tell(st.Done, st.Total) })
	}
	if err != nil {
		return remote.Pushed{}, err
	}
	learned := remotes.LearnedIn(u.o.Store, info.ID)
	p, err := s.PushTelling(ctx, u.o.Store, info.ID, tell)
	if err != nil {
		return p, err
	}
	u.o.Remote.NoteStands(info.ID, info.Name)
	if !p.Already {
		u.o.Remote.NoteLearned(info.ID, learned)
		return p, nil
	}
	return p, u.takeLearned(ctx, info.ID, func(_ string, done, total int64) { tell(done, total) })
}

// tellEvery is how often wait tells what is being done.
const tellEvery = 100 * time.Millisecond

// wait waits until busy says that what the caller waits for is not under way any more, or ctx ends. It tells what is
// being done.
func (u *Uploads) wait(ctx context.Context, busy func() bool, tell func(State)) error {
	t := time.NewTicker(tellEvery)
	defer t.Stop()
	for {
		u.mu.Lock()
		b, turn, st := busy(), u.turn, u.state
		u.mu.Unlock()
		if !b {
			return nil
		}
		tell(st)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-turn:
		case <-t.C:
		}
	}
}

// Settle waits until all that was sealed before stands or has failed.
func (u *Uploads) Settle(ctx context.Context, tell func(State)) error {
	return u.wait(ctx, func() bool { return u.held }, tell)
}
