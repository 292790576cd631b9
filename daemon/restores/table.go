package restores

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/lifetime"
	"github.com/gpucr/gpucr-fs/daemon/profiles"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/restore/feed"
)

// Options of a Table.
type Options struct {
	Store    *index.Store
	Lifetime *lifetime.Lifetime
	// Mounts tells whether the daemon stays for others after a restore.
	Mounts Mounts
	// Guardian is the command that runs uffd.GuardianMain, Successor the one whose process goes on with a restore of a
	// killed daemon; without them nothing can be restored.
	Guardian, Successor []string
	// Spare is a guardian that may have been started already.
	Spare *Spare
	// Driver is kept loaded once a restore has used CUDA.
	Driver *Driver
	// CacheSize is that of the store's options.
	CacheSize int64
	Log       *slog.Logger
	// Busy, if set, tells that processes wait for a fill of GPU memory before they run; see prefetch.Options.
	Busy func() bool
	// Began, if set, is told of each restore that has been prepared or taken over. It must not wait.
	Began func(*Restore)
	// Learned, if set, is told of each checkpoint that has got a profile or a packed hot set by a restore. It must not
	// wait.
	Learned func(checkpoint string)
}

// Mounts are the mounts beside the restores.
type Mounts interface {
	// Public tells that there is a mount that does not go with a restore.
	Public() bool
}

// Table has the restores of one daemon.
type Table struct {
	o      Options
	served sync.WaitGroup
	// serving is what restores are served in; ended when successors are to take them over.
	serving context.Context
	endServ context.CancelFunc

	mu    sync.Mutex
	at    map[string]*Restore  // by ID
	early map[string]*starting // by ID: CRIU may read the images of these, too
	// forgotten are the IDs of restores that end as soon as they are taken over, because they were begun again.
	forgotten map[string]bool
}

// New makes an empty table.
func New(o Options) *Table {
	t := &Table{o: o, at: map[string]*Restore{}, early: map[string]*starting{}, forgotten: map[string]bool{}}
	t.serving, t.endServ = context.WithCancel(context.Background())
	return t
}

// Memory of a restore's buffers: a share of the cache, within bounds.
const (
	bufferShare = 8
	minBuffers  = 4 << 20
	maxBuffers  = 32 << 20
)

// defaultCache is the cache of a store whose options do not say, see index.Options.
const defaultCache = 128 << 20

func (t *Table) buffers() int64 {
	cache := t.o.CacheSize
	if cache == 0 {
		cache = defaultCache
	}
	return min(max(cache/bufferShare, minBuffers), maxBuffers) &^ (1<<20 - 1)
}

// Touch tells the restores of a checkpoint of a read through a mount.
func (t *Table) Touch(checkpoint, path string, off, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.at {
		if r.name == checkpoint && r.running() {
			r.feed.Touch(path, off, n)
		}
	}
	for _, s := range t.early {
		if s.name == checkpoint {
			s.touch(path, off, n)
		}
	}
}

// starting is a restore that Start is preparing.
type starting struct {
	name  string // of the checkpoint
	touch func(name string, off, n int64)
}

// Ready is what CRIU can be started with.
type Ready struct {
	Name    string // of the checkpoint
	Replays bool   // a profile is replayed
	// Inherited gives images that CRIU has to see in place of those of the same name, see feed.Feed.
	Inherited map[string][]byte
}

// readyEarly has ready called as soon as CRIU may be started, with what it reads recorded from then on.
func (t *Table) readyEarly(id, name string, replays bool, ready func(Ready) error) func(feed.Early) error {
	return func(e feed.Early) error {
		t.mu.Lock()
		t.early[id] = &starting{name: name, touch: e.Touch}
		t.mu.Unlock()
		return ready(Ready{Name: name, Replays: replays, Inherited: e.Inherited})
	}
}

// feedOptions are those that Start and Takeover share. also, when it is not nil, takes what is logged, too.
func (t *Table) feedOptions(s Serving, id string, also slog.Handler) feed.Options {
	log := t.o.Log
	if also != nil {
		log = slog.New(slog.NewMultiHandler(t.o.Log.Handler(), also))
	}
	return feed.Options{
		Images:    feed.Stored{Store: t.o.Store, Ref: id},
		Rate:      s.Rate,
		RecordGPU: s.RecordGPU,
		Copies:    s.Copies,
		Busy:      t.o.Busy,
		Logger:    log.With("restore", s.ID),
	}
}

// Start starts to serve memory, with the socket in CRIU's work directory work: when it returns, CRIU may be started.
// The daemon stays until the restore is over. also, when it is not nil, gets a copy of the restore's log lines. inherit
// is feed.Options'. early, when it is not nil, is called when CRIU may be started already: see feed.Options.Early.
func (t *Table) Start(
	s Serving, work string, also slog.Handler, inherit bool, early func(Ready) error,
) (_ *Restore, err error) {
	if len(t.o.Guardian) == 0 {
		return nil, &index.Error{
			Class: index.Unsupported,
			Op:    "restore",
			Err:   errors.New("this daemon was started without a guardian"),
		}
	}
	c, err := t.o.Store.Checkpoint(s.Checkpoint)
	if err != nil {
		return nil, err
	}
	release, err := c.Keep()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	profile, record, err := profiles.Load(t.o.Store, c.Info().ID, t.o.Log)
	if err != nil {
		return nil, err
	}
	s.Checkpoint = c.Info().ID // a name may be used again
	spec, err := encode(s)
	if err != nil {
		return nil, err
	}
	o := t.feedOptions(s, c.Info().ID, also)
	o.Work, o.Memory, o.Profile, o.Record = work, t.buffers(), profile, record
	o.Inherit = inherit
	o.Guardian, o.Spare = t.o.Guardian, t.o.Spare.take()
	if len(t.o.Successor) > 0 {
		o.Successor = append(slices.Clone(t.o.Successor), spec)
	}
	if early != nil {
		o.Early = t.readyEarly(s.ID, c.Info().Name, profile != nil, early)
		defer func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			delete(t.early, s.ID)
		}()
	}
	f, err := feed.Start(o)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", c.Info().Name, err)
	}
	return t.enter(&Restore{
		Serving: s,
		name:    c.Info().Name,
		log:     o.Logger.With("checkpoint", c.Info().Name),
		feed:    f,
		release: release,
		replays: profile != nil,
	})
}

// enter puts a restore into the table and serves it. Where it fails, the caller lets the checkpoint go.
func (t *Table) enter(r *Restore) (*Restore, error) {
	r.done, r.prepared = make(chan struct{}), time.Now()
	t.mu.Lock()
	_, taken := t.at[r.ID]
	if taken || !t.o.Lifetime.Hold() {
		t.mu.Unlock()
		r.feed.Abandon()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		r.feed.Serve(ctx)
		r.feed.Close()
		if taken {
			return nil, &index.Error{
				Class: index.Exists,
				Op:    "restore",
				Err:   fmt.Errorf("there is a restore %s already", r.ID),
			}
		}
		return nil, lifetime.ErrStopping()
	}
	t.at[r.ID] = r
	if t.forgotten[r.ID] {
		r.feed.Abandon()
	}
	t.served.Go(func() { t.serve(r) })
	t.mu.Unlock()
	if t.o.Began != nil {
		t.o.Began(r)
	}
	r.log.Info("restore prepared", "bytes", r.feed.Status().TotalBytes, "profile", r.replays)
	return r, nil
}

// serve is the life of a restore in the daemon.
func (t *Table) serve(r *Restore) {
	err := r.feed.Serve(t.serving)
	st := r.feed.Status()
	whole := st.PoisonedBytes == 0 && len(st.Killed) == 0 && !st.Finished.IsZero()
	if err == nil {
		r.log.Info(
			"restore is resident", "faults", st.Faults, "copied", st.CopiedBytes, "zero", st.ZeroBytes, "poisoned",
			st.PoisonedBytes,
		)
		err = t.keepProfile(r, st)
	}
	if err != nil {
		r.log.Error("restore ended", "error", err)
	}
	if cerr := r.feed.Close(); cerr != nil {
		r.log.Error("restore ended uncleanly", "error", cerr)
	}
	r.mu.Lock()
	r.err = err
	r.mu.Unlock()
	if t.serving.Err() == nil { // else successors need it
		r.release()
	}
	close(r.done)
	if t.o.Mounts.Public() {
		t.o.Spare.Start(t.o.Guardian)
		if r.feed.CUDA() {
			t.o.Driver.keep()
		}
	}
	if err == nil && whole && !t.o.Store.ReadOnly() {
		t.keepHot(r)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.at, r.ID)
	t.o.Lifetime.Release()
}

// keepProfile stores what a complete restore has recorded.
func (t *Table) keepProfile(r *Restore, st feed.Status) error {
	p := r.feed.Profile()
	if p == nil || t.o.Store.ReadOnly() || st.PoisonedBytes > 0 || len(st.Killed) > 0 || st.Finished.IsZero() {
		return nil
	}
	if err := t.o.Store.SetProfile(r.Checkpoint, p.Encode()); err != nil {
		// The processes are well without it.
		t.o.Log.Error("could not keep the profile", "checkpoint", r.name, "error", err)
		return nil
	}
	if t.o.Learned != nil {
		t.o.Learned(r.Checkpoint)
	}
	t.o.Log.Info("profile recorded", "checkpoint", r.name, "touches", len(p.Touches), "bytes", p.Bytes())
	return nil
}

// Forget ends a restore that was taken over, or is still to be taken over: it failed, and its processes must go.
func (t *Table) Forget(id string) {
	t.mu.Lock()
	t.forgotten[id] = true
	r := t.at[id]
	t.mu.Unlock()
	if r != nil {
		r.Abandon()
	}
}

// keepHot has the next restore of the checkpoint find its hot set in one place. Nobody waits for that.
func (t *Table) keepHot(r *Restore) {
	switch n, err := r.feed.KeepHot(t.serving); {
	case err != nil:
		t.o.Log.Warn("could not keep the hot set", "checkpoint", r.name, "error", err)
	case n > 0:
		t.o.Log.Info("hot set packed", "checkpoint", r.name, "bytes", n)
		if t.o.Learned != nil {
			t.o.Learned(r.Checkpoint)
		}
	}
}

// handTimeout is how long a daemon that is told to stop goes on with its restores before it leaves them to
// successors.
const handTimeout = 10 * time.Second

// Close waits for the restores in progress, or leaves them to their guardians. Wait waits for what they leave behind.
func (t *Table) Close() {
	defer t.endServ()
	late := time.After(handTimeout)
	for {
		t.mu.Lock()
		left := slices.Collect(maps.Values(t.at))
		t.mu.Unlock()
		if len(left) == 0 {
			return
		}
		select {
		case <-left[0].done:
		case <-late:
			t.o.Log.Warn("leaving restores to successors", "restores", len(left))
			t.endServ()
			for _, r := range left {
				<-r.done
			}
			return
		}
		// The table changes right after done.
		time.Sleep(time.Millisecond)
	}
}

// Wait returns when nothing is done for a restore any more, after Close.
func (t *Table) Wait() { t.served.Wait() }

// List gives a snapshot of the table, ordered by the time they were prepared.
func (t *Table) List() []*Restore {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.SortedFunc(maps.Values(t.at), func(a, b *Restore) int { return a.prepared.Compare(b.prepared) })
}

// Adopt goes on with a restore; it closes the descriptors.
func (t *Table) Adopt(s Serving, guardian, setup *os.File) (err error) {
	c, err := t.o.Store.Checkpoint(s.Checkpoint)
	if err != nil {
		return errors.Join(err, guardian.Close(), setup.Close())
	}
	release, err := c.Keep()
	if err != nil {
		return errors.Join(err, guardian.Close(), setup.Close())
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	profile, _, err := profiles.Load(t.o.Store, c.Info().ID, t.o.Log)
	if err != nil {
		// The tasks are waiting already, and without it they only wait longer.
		t.o.Log.Warn("the profile cannot be read, going on without", "checkpoint", c.Info().Name, "error", err)
		profile = nil
	}
	o := t.feedOptions(s, c.Info().ID, nil)
	o.Profile = profile
	f, err := feed.Takeover(o, guardian, setup)
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", c.Info().Name, err)
	}
	t.o.Log.Warn("restore taken over from a daemon that was killed", "restore", s.ID, "checkpoint", c.Info().Name)
	_, err = t.enter(&Restore{
		Serving: s,
		name:    c.Info().Name,
		log:     o.Logger.With("checkpoint", c.Info().Name),
		feed:    f,
		release: release,
		replays: profile != nil,
		resumed: true,
		adopted: true,
	})
	return err
}

// Of gives a restore by its ID, nil when there is none, or no more.
func (t *Table) Of(id string) *Restore {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at[id]
}

// Any tells whether this daemon brings the memory of a restore.
func (t *Table) Any() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.at) > 0
}

// Over tells that of restores there are only such whose hot set is being packed.
func (t *Table) Over() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.at {
		select {
		case <-r.done:
		default:
			return false
		}
	}
	return true
}
