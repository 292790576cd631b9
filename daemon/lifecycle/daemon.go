package lifecycle

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/fill"
	"github.com/gpucr/gpucr-fs/daemon/gpu"
	"github.com/gpucr/gpucr-fs/daemon/label"
	"github.com/gpucr/gpucr-fs/daemon/lifetime"
	"github.com/gpucr/gpucr-fs/daemon/mounts"
	"github.com/gpucr/gpucr-fs/daemon/page"
	"github.com/gpucr/gpucr-fs/daemon/remotes"
	"github.com/gpucr/gpucr-fs/daemon/restores"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/talk"
	"github.com/gpucr/gpucr-fs/daemon/uploads"
	"github.com/gpucr/gpucr-fs/daemon/web"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// Options of a daemon.
type Options struct {
	// Dir is the store.
	Dir string
	// Index are the options the store is opened with. OnRead, Cuts, Labels and Daemon are set by the daemon.
	Index index.Options
	// Mount makes a mount, a private one nowhere. It tells onAccess of every read of sealed content.
	Mount func(ctx context.Context, s *index.Store, r mounts.Request, onAccess mounts.OnAccess) (mounts.Mount, error)
	// Guardian is the command that runs uffd.GuardianMain, Successor the one that runs Succeed; without them nothing
	// can be restored.
	Guardian, Successor []string
	// Driver loads NVIDIA's driver, to be kept for restores; nil: it is not kept.
	Driver func() (io.Closer, error)
	// Restores: the daemon is started for a restore, and makes ready for it.
	Restores bool
	// Stays: the daemon goes on until it is told to stop, also when nothing is mounted.
	Stays bool
	// Await is how long at most a daemon that has nothing to do waits for its starter to connect, before it leaves.
	Await time.Duration
	// Logger takes what an administrator should see. Default: discards.
	Logger *slog.Logger
	// Version is told to clients.
	Version string

	// adopts: the daemon is started to take over a restore of this checkpoint (ID). From its start on it is held and
	// keeps the checkpoint; its starter ends both by Daemon.adopted.
	adopts string
}

// Validate refuses options that cannot work.
func (o *Options) Validate() error {
	if o.Dir == "" || o.Mount == nil {
		return &index.Error{
			Class: index.Invalid,
			Op:    "daemon",
			Err:   errors.New("a store and a way to mount are needed"),
		}
	}
	return o.Index.Validate()
}

// Daemon owns an open store, its socket and its mounts.
type Daemon struct {
	o        Options
	log      *slog.Logger
	store    *index.Store
	remote   *remotes.Remote
	home     home
	lifetime *lifetime.Lifetime
	parts    *service.Parts
	metrics  *metrics
	recent   *page.Recent
	page     *page.Server
	slots    struct{ metrics, page *web.Slot }
	http     *http.Server
	served   chan error // result of http.Serve
	spare    *restores.Spare
	driver   *restores.Driver
	fills    *fill.Server
	endFill  context.CancelFunc
	kept     func()        // lets the checkpoint of Options.adopts be removed
	quit     chan struct{} // closed when the daemon closes
}

// Start opens the store and listens on its socket. Class InUse when another process holds the store. The caller adds
// mounts, then calls Run, or Close.
func Start(ctx context.Context, o Options) (_ *Daemon, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Daemon{
		o:        o,
		log:      o.Logger,
		lifetime: lifetime.New(),
		spare:    &restores.Spare{},
		quit:     make(chan struct{}),
		served:   make(chan error, 1),
	}
	started := time.Now()
	d.recent = page.NewRecent()
	o.Logger = slog.New(slog.NewMultiHandler(o.Logger.Handler(), d.recent))
	d.o.Logger, d.log = o.Logger, o.Logger
	d.metrics, d.driver = newMetrics(d), restores.NewDriver(o.Driver, o.Logger)
	o.Index.OnRead = d.metrics.observe
	o.Index.Cuts, o.Index.Labels = gpu.Cuts, label.OfImages
	o.Index.Logger, o.Index.Daemon = o.Logger, true
	if o.Restores && len(o.Guardian) > 0 {
		d.spare.Start(o.Guardian)
		defer func() {
			if err != nil {
				d.spare.Close()
			}
		}()
	}
	if d.remote, err = remotes.Of(o.Dir, &o.Index, o.Logger); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.remote.Close()
		}
	}()
	store, err := openForDaemon(ctx, o)
	if err != nil {
		return nil, err
	}
	d.store = store
	d.remote.Serve(store)
	if d.home, err = takeHome(store); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	defer func() {
		if err != nil {
			d.home.Close()
		}
	}()
	if o.Stays {
		d.lifetime.Hold()
	}
	if o.adopts != "" {
		d.lifetime.Hold()
		d.keepAdopted()
	}
	if o.Await > 0 {
		d.lifetime.Await(o.Await)
	}
	d.assemble(started)
	if o.Stays {
		d.parts.Staying.Add(1)
	}
	l, err := wire.Operations.Listen(d.home.dir)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	fills, endFill := context.WithCancel(context.Background())
	d.endFill = endFill
	d.parts.Talks = talk.NewPlaces(fills.Done())
	if d.remote != nil && !store.ReadOnly() {
		d.parts.Uploads = uploads.Start(uploads.Options{Store: store, Remote: d.remote, Lifetime: d.lifetime,
			Log: d.log})
		defer func() {
			if err != nil {
				d.parts.Uploads.Close()
			}
		}()
	}
	d.fills, err = fill.Listen(
		fills,
		fill.Options{Dir: d.home.dir, Store: store, Lifetime: d.lifetime, Talks: d.parts.Talks, Log: d.log},
	)
	if err != nil {
		endFill()
		return nil, errors.Join(err, l.Close(), store.Close())
	}
	d.http = d.newServer()
	go func() { d.served <- d.http.Serve(rootOnly{l, d.log}) }()
	d.log.Info("daemon started", "store", store.Dir(), "pid", os.Getpid(), "version", o.Version)
	return d, nil
}

// keepAdopted keeps the checkpoint of a restore that is to be taken over. Where it is gone, taking over says so.
func (d *Daemon) keepAdopted() {
	d.kept = func() {}
	c, err := d.store.Checkpoint(d.o.adopts)
	if err != nil {
		return
	}
	if release, err := c.Keep(); err == nil {
		d.kept = release
	}
}

// adopted tells that the restore is taken over: now it holds the daemon and keeps the checkpoint itself.
func (d *Daemon) adopted() {
	d.kept()
	d.lifetime.Release()
}

// assemble makes the tables of mounts and restores, which know each other: reads through a mount are told to the
// restores, and a daemon that stays for its mounts makes ready for the next restore.
func (d *Daemon) assemble(started time.Time) {
	d.parts = &service.Parts{Since: started}
	d.page = page.New(
		page.Options{Env: d.env, Recent: d.recent, Metrics: d.metrics.handler(), Version: d.o.Version, Log: d.log},
	)
	d.slots.metrics = web.New(
		web.Options{Name: "metrics", Flag: "--metrics-addr", Handler: d.metrics.handler(), Log: d.log},
	)
	d.slots.page = web.New(web.Options{Name: "page", Flag: "--http", Page: true, Handler: d.page, Log: d.log,
		Begun: func() { d.page.Start(d.parts.Restores.List()) }})
	d.parts.Mounts = mounts.New(
		mounts.Options{Store: d.store, Lifetime: d.lifetime, Metrics: d.slots.metrics, Page: d.slots.page, Log: d.log,
			Mount: func(ctx context.Context, r mounts.Request) (mounts.Mount, error) {
				if r.Checkpoint != "" {
					env := service.Env{Store: d.store, Remote: d.remote, Log: d.log}
					if _, err := env.Checkpoint(ctx, r.Checkpoint); err != nil {
						return nil, err
					}
				}
				return d.o.Mount(ctx, d.store, r, d.parts.Restores.Touch)
			}},
	)
	d.parts.Restores = restores.New(restores.Options{Store: d.store, Lifetime: d.lifetime, Mounts: d.parts.Mounts,
		Log:      d.log,
		Guardian: d.o.Guardian, Successor: d.o.Successor, Spare: d.spare, Driver: d.driver,
		CacheSize: d.o.Index.CacheSize,
		Busy:      func() bool { return d.fills.Gates() }, // it is there before anybody can restore
		Began:     d.page.Began, Learned: func(checkpoint string) { d.parts.Uploads.Learned(checkpoint) }})
}

// env is what operations run in that nobody sends anything.
func (d *Daemon) env() *service.Env {
	return &service.Env{
		Store:   d.store,
		Remote:  d.remote,
		Daemon:  d.parts,
		Log:     d.log,
		Streams: wire.Streams{Progress: func(wire.Progress) {}},
	}
}

// Store gives the open store; it stays the daemon's.
func (d *Daemon) Store() *index.Store { return d.store }

// Run serves until nothing is left to do or ctx ends, then closes the daemon. Its error is what made the end unclean.
func (d *Daemon) Run(ctx context.Context) error {
	select {
	case <-d.lifetime.Idle():
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
	d.lifetime.Stop()
	d.endFill()
	d.fills.Close()
	d.spare.Close()
	d.driver.Close()
	d.parts.Restores.Close()
	close(d.quit)
	errs := []error{d.parts.Mounts.Close()}
	d.fills.Wait()
	d.parts.Uploads.Close()
	d.parts.Restores.Wait()
	d.parts.Mounts.Wait()
	// The operations in flight end by themselves; two minutes are for a client that stopped reading.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := d.http.Shutdown(ctx); err != nil {
		errs = append(errs, d.http.Close())
	}
	<-d.served
	d.slots.metrics.Close()
	d.slots.page.Close()
	d.page.Close()
	wire.Operations.Remove(d.home.dir)
	errs = append(errs, d.home.Close())
	d.remote.SaveRequests()
	errs = append(errs, d.store.Close())
	d.remote.Close()
	err := errors.Join(errs...)
	if err != nil {
		d.log.Error("daemon stopped", "error", err)
	} else {
		d.log.Info("daemon stopped")
	}
	return err
}

// AddMount mounts the store at r.Dir and serves it until it is unmounted.
func (d *Daemon) AddMount(ctx context.Context, r mounts.Request) (mounts.Result, error) {
	return d.parts.Mounts.Add(ctx, r)
}

// Serving is what a daemon without a mount tells its starter.
func (d *Daemon) Serving() mounts.Result { return d.parts.Mounts.Result(mounts.Request{}) }

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
