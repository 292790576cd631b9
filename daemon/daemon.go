// Package daemon holds the operations on a store and the process that keeps one open for its mounts.
//
// One process at a time may hold a store. While something is mounted, that process is the daemon; every other command then works through its socket. So each
// operation is written once, as a function from a request to a result over an [Env], entered in one table by [define], and run in one of two ways by a
// [Session]: directly, on a store the command opened for itself, or by name, sent to the daemon. Callers cannot tell the difference:
//
//	s, err := daemon.Connect(ctx, dir, options)
//	res, err := daemon.List.Do(ctx, s, daemon.ListRequest{}, wire.Streams{})
//
// # The life of a daemon
//
// It opens the store, listens, mounts, reports to its starter over a pipe, and serves until its last mount is gone, however it went, no restore is in progress
// and nobody holds it, or until its context ends; then it unmounts what is left, waits for operations in flight, removes the socket and closes the store.
// Killed, it leaves a stale mount, which the next mount at that place detaches, and a stale socket, which the next daemon replaces: whoever holds the store's
// lock owns the name of the socket.
//
// Every client holds the daemon for as long as its session lasts: it says so first thing, on a connection it keeps, and is told whether the daemon stays. A
// daemon that has decided to leave refuses, and the client looks again: it finds the store free, or another daemon. So no request meets a daemon that leaves.
//
// # Restores
//
// A restore's memory comes from the daemon, see restores.go, while CRIU runs in the command. When the daemon is killed, the guardian of each restore starts a
// successor (adopt.go). One of them opens the store and is the daemon; the others hand it the descriptors of their guardians and end.
//
// # Lock order
//
// Daemon.mu, then restoring.mu or spare.mu. None is held while mounting, unmounting or calling the store.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/gpu"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/fs"
	"github.com/gpucr/gpucr-fs/index"
)

// Mount is a mount being served, as [fs.Server] does it.
type Mount interface {
	// Draft gives a checkpoint that is being written through this mount; false when there is none of that name.
	Draft(name string) (*index.Draft, bool)
	// Seal completes a checkpoint that is being written through this mount; Class NotFound when there is none of that name.
	Seal(ctx context.Context, name string) (index.Info, error)
	// Discard gives a checkpoint up that is being written through this mount.
	Discard(name string) error
	// Failure gives the first error of a write to a checkpoint that is being written through this mount, nil without one.
	Failure(name string) error
	// Settle ends one whose writer is gone: sealed if it is complete, else given up.
	Settle(ctx context.Context, name string) error
	// Unmount flushes and detaches. Class InUse when the mount has users; it goes on then.
	Unmount(ctx context.Context) error
	// Close detaches from under its users.
	Close() error
	// Wait returns when the mount is gone, whoever unmounted it; the error says what could not be sealed.
	Wait() error
	// Stats gives counters since mounting.
	Stats() fs.Stats
	// Root leads into a private mount, which is attached nowhere.
	Root() *os.File
}

// OnAccess is told of reads through a mount, see fs.Options.
type OnAccess = func(checkpoint, path string, off, n int64)

// Options of a daemon.
type Options struct {
	// Dir is the store.
	Dir string
	// Index are the options the store is opened with. OnRead, Cuts and Labels are taken over by the daemon.
	Index index.Options
	// Mount makes a mount, a private one nowhere. It tells onAccess of every read of sealed content.
	Mount func(ctx context.Context, s *index.Store, r MountRequest, onAccess OnAccess) (Mount, error)
	// Guardian is the command that runs uffd.GuardianMain, Successor the one that runs Succeed; without them nothing can be restored.
	Guardian, Successor []string
	// Restores: the daemon is started for a restore, and makes ready for it.
	Restores bool
	// Await keeps a daemon that has nothing to do from leaving before its starter has come, for this long at most.
	Await time.Duration
	// Logger takes what an administrator should see. Default: discards.
	Logger *slog.Logger
	// Version is told to clients.
	Version string
}

// Validate refuses options that cannot work.
func (o *Options) Validate() error {
	if o.Dir == "" || o.Mount == nil {
		return &index.Error{Class: index.Invalid, Op: "daemon", Err: errors.New("a store and a way to mount are needed")}
	}
	return o.Index.Validate()
}

// mounted is one entry of the daemon's table.
type mounted struct {
	req   MountRequest
	since time.Time
	m     Mount
	gone  chan struct{} // closed when the mount is out of the table
}

// Daemon owns an open store, its socket and its mounts.
type Daemon struct {
	o       Options
	log     *slog.Logger
	store   *index.Store
	home    home
	started time.Time
	metrics *metrics
	http    *http.Server
	served  chan error // result of http.Serve
	filler  *filler
	spare   spare
	wg      sync.WaitGroup
	quit    chan struct{} // closed when the daemon closes

	// serving is what restores are served in; ended when successors are to take them over.
	serving context.Context
	endServ context.CancelFunc

	mu       sync.Mutex
	mounts   map[string]*mounted     // by directory
	restores map[string]*restoring   // by ID
	hands    map[string]chan *handed // connections that pass directories, by the ID of the request
	// forgotten are restores that end as soon as they are taken over, by ID: as many as restores were begun again.
	forgotten map[string]bool
	pending   int  // mounts and restores being made, and clients that hold the daemon
	awaiting  bool // pending counts the starter, who has not come yet
	stopping  bool
	idle      chan struct{} // closed when nothing is left to do
}

// Start opens the store and listens on its socket. Class InUse when another process holds the store. The caller adds mounts, then calls Run, or Close.
func Start(ctx context.Context, o Options) (_ *Daemon, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Daemon{o: o, log: o.Logger, started: time.Now(), mounts: map[string]*mounted{}, restores: map[string]*restoring{}, hands: map[string]chan *handed{}, forgotten: map[string]bool{},
		idle: make(chan struct{}), quit: make(chan struct{}), served: make(chan error, 1)}
	d.serving, d.endServ = context.WithCancel(context.Background())
	d.metrics = newMetrics(d)
	o.Index.OnRead = d.metrics.observe
	o.Index.Cuts, o.Index.Labels = gpu.Cuts, imageLabels
	o.Index.Logger = o.Logger
	if o.Restores && len(o.Guardian) > 0 {
		d.spare.start(o.Guardian)
		defer func() {
			if err != nil {
				d.spare.close()
			}
		}()
	}
	store, err := openForDaemon(ctx, o)
	if err != nil {
		return nil, err
	}
	d.store = store
	if d.home, err = takeHome(store); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	defer func() {
		if err != nil {
			d.home.Close()
		}
	}()
	if o.Await > 0 {
		d.pending, d.awaiting = 1, true
		time.AfterFunc(o.Await, d.come)
	}
	l, err := wire.Operations.Listen(d.home.dir)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	if d.filler, err = startFiller(d); err != nil {
		return nil, errors.Join(err, l.Close(), store.Close())
	}
	d.http = d.newServer()
	go func() { d.served <- d.http.Serve(rootOnly{l, d.log}) }()
	d.log.Info("daemon started", "store", store.Dir(), "pid", os.Getpid(), "version", o.Version)
	return d, nil
}

// Store gives the open store; it stays the daemon's.
func (d *Daemon) Store() *index.Store { return d.store }

// Run serves until nothing is left to do or ctx ends, then closes the daemon. Its error is what made the end unclean.
func (d *Daemon) Run(ctx context.Context) error {
	select {
	case <-d.idle:
		d.log.Info("nothing is mounted, and nothing restored")
	case <-ctx.Done():
		d.log.Info("told to stop")
	case err := <-d.served:
		d.served <- err
		d.log.Error("the socket failed", "error", err)
	}
	return d.Close()
}

// Close unmounts everything, from under its users if need be, waits for operations in flight, and closes the store.
func (d *Daemon) Close() error {
	d.mu.Lock()
	d.stopping = true
	left := slices.Collect(maps.Values(d.mounts))
	d.mu.Unlock()

	d.filler.close()
	d.spare.close()
	errs := []error{d.closeRestores()}
	close(d.quit)
	for _, m := range left {
		err := m.m.Unmount(context.Background())
		if index.ClassOf(err) == index.InUse {
			d.log.Warn("detaching a mount in use", "dir", m.req.Dir, "error", err)
			err = m.m.Close()
		}
		errs = append(errs, err)
	}
	d.wg.Wait()
	// The operations in flight end by themselves; two minutes are for a client that stopped reading.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := d.http.Shutdown(ctx); err != nil {
		errs = append(errs, d.http.Close())
	}
	<-d.served
	d.metrics.close()
	wire.Operations.Remove(d.home.dir)
	errs = append(errs, d.home.Close())
	errs = append(errs, d.store.Close())
	err := errors.Join(errs...)
	if err != nil {
		d.log.Error("daemon stopped", "error", err)
	} else {
		d.log.Info("daemon stopped")
	}
	return err
}

// AddMount mounts the store at r.Dir and serves it until it is unmounted.
func (d *Daemon) AddMount(ctx context.Context, r MountRequest) (MountResult, error) {
	if err := d.reserve(r.Dir); err != nil {
		return MountResult{}, err
	}
	defer d.release()
	if r.MetricsAddr != "" {
		if err := d.metrics.listen(r.MetricsAddr, d.log); err != nil {
			return MountResult{}, err
		}
	}
	if err := r.checkNamespace(); err != nil {
		return MountResult{}, err
	}
	if r.ReadOnly && !d.store.ReadOnly() {
		return MountResult{}, &index.Error{Class: index.InUse, Op: "mount", File: d.store.Dir(), Err: errors.New("its daemon has it open for writing"),
			Hint: "leave --read-only out, or unmount first what is mounted"}
	}
	if !r.Private {
		if _, err := fs.ClearStale(r.Dir); err != nil {
			return MountResult{}, err
		}
	}
	// The mount outlives the request that asked for it.
	m, err := d.o.Mount(context.WithoutCancel(ctx), d.store, r, d.touch)
	if err != nil {
		return MountResult{}, err
	}
	e := &mounted{req: r, since: time.Now(), m: m, gone: make(chan struct{})}
	if !d.enter(e) {
		return MountResult{}, errors.Join(errStopping(), m.Close())
	}
	d.log.Info("mounted", "dir", r.Dir, "checkpoint", r.Checkpoint, "new", r.New)
	return d.mountResult(r), nil
}

func (d *Daemon) mountResult(r MountRequest) MountResult {
	return MountResult{Dir: r.Dir, Store: d.store.Dir(), Checkpoint: r.Checkpoint, New: r.New, PID: os.Getpid(), Metrics: d.metrics.addr(), ReadOnly: d.store.ReadOnly()}
}

// Serving is what a daemon without a mount tells its starter.
func (d *Daemon) Serving() MountResult { return d.mountResult(MountRequest{}) }

// reserve books a place for a mount being made, so that the daemon does not leave meanwhile.
func (d *Daemon) reserve(dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopping {
		return errStopping()
	}
	if _, ok := d.mounts[dir]; ok {
		return &index.Error{Class: index.Exists, Op: "mount", File: dir, Err: errors.New("the store is mounted there already")}
	}
	d.pending++
	return nil
}

func (d *Daemon) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pending--
	d.checkIdleLocked()
}

// enter puts a mount into the table and watches it; false when the daemon has begun to stop.
func (d *Daemon) enter(e *mounted) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopping {
		return false
	}
	d.mounts[e.req.Dir] = e
	d.wg.Go(func() { d.watch(e) })
	return true
}

func errStopping() error {
	return &index.Error{Class: index.InUse, Op: "mount", Err: errors.New("the daemon is just stopping"), Hint: "try again"}
}

// watch takes a mount out of the table when it is gone.
func (d *Daemon) watch(e *mounted) {
	if err := e.m.Wait(); err != nil {
		d.log.Error("unmounted", "dir", e.req.Dir, "error", err)
	} else {
		d.log.Info("unmounted", "dir", e.req.Dir)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.mounts, e.req.Dir)
	close(e.gone)
	d.checkIdleLocked()
}

func (d *Daemon) checkIdleLocked() {
	if d.unusedLocked() && d.pending == 0 && !d.stopping {
		d.stopping = true
		close(d.idle)
	}
}

func (d *Daemon) unusedLocked() bool { return len(d.mounts) == 0 && len(d.restores) == 0 }

// staysLocked tells that there is a mount that does not go with a restore.
func (d *Daemon) staysLocked() bool {
	for _, m := range d.mounts {
		if !m.req.Private {
			return true
		}
	}
	return false
}

// hold keeps the daemon from leaving until release; false when it leaves already.
func (d *Daemon) hold() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopping {
		return false
	}
	d.pending++
	d.comeLocked()
	return true
}

// come ends the wait for the starter.
func (d *Daemon) come() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.comeLocked()
}

func (d *Daemon) comeLocked() {
	if d.awaiting {
		d.awaiting = false
		d.pending--
		d.checkIdleLocked()
	}
}

// Unmount flushes and detaches the mount at dir; last tells that the daemon goes when its clients let it. With an error
// that is an *fs.Unfinished the mount is gone all the same.
func (d *Daemon) Unmount(ctx context.Context, dir string, force bool) (last bool, err error) {
	e := d.mountAt(dir)
	if e == nil {
		return false, &index.Error{Class: index.NotFound, Op: "umount", File: dir, Err: errors.New("this store is not mounted there")}
	}
	err = e.m.Unmount(ctx)
	if force && index.ClassOf(err) == index.InUse {
		err = e.m.Close()
	}
	if unfinished := (*fs.Unfinished)(nil); err != nil && !errors.As(err, &unfinished) {
		return false, fmt.Errorf("umount %s: %w", dir, err)
	}
	select {
	case <-e.gone:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.leavesLocked(), err
}

// leavesLocked tells that the daemon goes by itself soon: nothing is mounted, and of restores there are only such whose hot set is being packed.
func (d *Daemon) leavesLocked() bool {
	for _, r := range d.restores {
		select {
		case <-r.done:
		default:
			return false
		}
	}
	return len(d.mounts) == 0
}

// mountAt gives the mount at a directory, nil without one.
func (d *Daemon) mountAt(dir string) *mounted {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mounts[dir]
}

// dropMount takes a private mount away. CRIU, which has just ended, may not have closed all of it yet; whoever else is there loses it.
func (d *Daemon) dropMount(dir string) error {
	e := d.mountAt(dir)
	if e == nil {
		return nil
	}
	err := e.m.Unmount(context.Background())
	if index.ClassOf(err) == index.InUse {
		err = e.m.Close()
	}
	<-e.gone
	return err
}

// mountList gives a snapshot of the table, ordered by directory.
func (d *Daemon) mountList() []*mounted {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.SortedFunc(maps.Values(d.mounts), func(a, b *mounted) int { return strings.Compare(a.req.Dir, b.req.Dir) })
}

// rootOnly lets only root and the daemon's own user through.
type rootOnly struct {
	net.Listener
	log *slog.Logger
}

func (l rootOnly) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, ok, err := wire.MayAsk(c)
		if ok {
			return c, nil
		}
		l.log.Warn("connection refused", "uid", uid, "error", err)
		c.Close()
	}
}
