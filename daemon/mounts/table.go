package mounts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/lifetime"
	"github.com/gpucr/gpucr-fs/daemon/web"
	"github.com/gpucr/gpucr-fs/fs"
	"github.com/gpucr/gpucr-fs/index"
)

// Options of a Table. All are needed.
type Options struct {
	Store Store
	// Mount makes a mount, a private one nowhere.
	Mount    func(context.Context, Request) (Mount, error)
	Lifetime *lifetime.Lifetime
	Metrics  Listener
	Page     Listener
	Log      *slog.Logger
}

// Store is the store that is mounted.
type Store interface {
	Dir() string
	// ReadOnly tells that it is open for reading only.
	ReadOnly() bool
}

// Listener serves the metrics, or the page, where a mount asks for them.
type Listener interface {
	// Listen serves; again at the same address it serves on, with the new token if there is one. Class Exists when it
	// serves elsewhere.
	Listen(at web.Where) error
	// Addr is where it serves, "" for nowhere.
	Addr() string
}

// Table has the mounts of one daemon.
type Table struct {
	o      Options
	served sync.WaitGroup // mounts, and what takes them away
	mu     sync.Mutex
	at     map[string]*Mounted // by directory
}

// Mounted is one mount of a Table.
type Mounted struct {
	Mount
	Request Request
	Since   time.Time
	gone    chan struct{} // closed when the mount is out of the table
}

// watchEvery is how often WatchWrites looks.
const watchEvery = 200 * time.Millisecond

// WatchWrites calls tell with how many bytes have been written through the mount, now and then, until stop is called,
// which waits for the last call.
func (m *Mounted) WatchWrites(tell func(bytes int64)) (stop func()) {
	end := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		t := time.NewTicker(watchEvery)
		defer t.Stop()
		for {
			select {
			case <-end:
				return
			case <-t.C:
				if n := m.Stats().WriteBytes; n > 0 {
					tell(n)
				}
			}
		}
	})
	return func() {
		close(end)
		watching.Wait()
	}
}

// New makes an empty table.
func New(o Options) *Table { return &Table{o: o, at: map[string]*Mounted{}} }

// Add mounts the store at r.Dir and serves it until it is unmounted.
func (t *Table) Add(ctx context.Context, r Request) (Result, error) {
	if err := t.reserve(r.Dir); err != nil {
		return Result{}, err
	}
	defer t.o.Lifetime.Release()
	if err := t.listen(r); err != nil || r.Dir == "" {
		return t.Result(r), err
	}
	if err := r.checkNamespace(); err != nil {
		return Result{}, err
	}
	if r.ReadOnly && !t.o.Store.ReadOnly() {
		return Result{}, &index.Error{Class: index.InUse, Op: "mount", File: t.o.Store.Dir(),
			Err:  errors.New("its daemon has it open for writing"),
			Hint: "leave out --read-only, or unmount the store first"}
	}
	if !r.Private {
		if _, err := fs.ClearStale(r.Dir); err != nil {
			return Result{}, err
		}
	}
	// The mount outlives the request that asked for it.
	m, err := t.o.Mount(context.WithoutCancel(ctx), r)
	if err != nil {
		return Result{}, err
	}
	e := &Mounted{Mount: m, Request: r, Since: time.Now(), gone: make(chan struct{})}
	if !t.enter(e) {
		return Result{}, errors.Join(lifetime.ErrStopping(), m.Close())
	}
	t.o.Log.Info("mounted", "dir", r.Dir, "checkpoint", r.Checkpoint, "new", r.New)
	return t.Result(r), nil
}

// listen serves what a mount asks for beside itself.
func (t *Table) listen(r Request) error {
	if r.MetricsAddr != "" {
		if err := t.o.Metrics.Listen(web.Where{Addr: r.MetricsAddr, TokenFile: r.TokenFile}); err != nil {
			return err
		}
	}
	if r.PageAddr == "" {
		return nil
	}
	return t.o.Page.Listen(web.Where{Addr: r.PageAddr, TokenFile: r.TokenFile})
}

// Result is what is told of a mount that serves.
func (t *Table) Result(r Request) Result {
	return Result{Dir: r.Dir, Store: t.o.Store.Dir(), Checkpoint: r.Checkpoint, New: r.New, PID: os.Getpid(),
		Metrics: t.o.Metrics.Addr(),
		Page:    t.o.Page.Addr(), ReadOnly: t.o.Store.ReadOnly()}
}

// Served is where the daemon's counters and the page are served, "" for nowhere.
func (t *Table) Served() (metrics, page string) { return t.o.Metrics.Addr(), t.o.Page.Addr() }

// reserve holds the daemon for a mount being made.
func (t *Table) reserve(dir string) error {
	if !t.o.Lifetime.Hold() {
		return lifetime.ErrStopping()
	}
	if t.At(dir) == nil {
		return nil
	}
	t.o.Lifetime.Release()
	return &index.Error{Class: index.Exists, Op: "mount", File: dir,
		Err: errors.New("the store is mounted there already")}
}

// enter puts a mount into the table and watches it; false when the daemon has begun to stop.
func (t *Table) enter(e *Mounted) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.o.Lifetime.Hold() {
		return false
	}
	t.at[e.Request.Dir] = e
	t.served.Go(func() { t.watch(e) })
	return true
}

// watch takes a mount out of the table when it is gone.
func (t *Table) watch(e *Mounted) {
	if err := e.Wait(); err != nil {
		t.o.Log.Error("unmounted", "dir", e.Request.Dir, "error", err)
	} else {
		t.o.Log.Info("unmounted", "dir", e.Request.Dir)
	}
	t.mu.Lock()
	delete(t.at, e.Request.Dir)
	close(e.gone)
	t.mu.Unlock()
	t.o.Lifetime.Release()
}

// Close unmounts everything, from under its users if need be, after the end of the daemon's lifetime. Wait waits for
// it.
func (t *Table) Close() error {
	var errs []error
	for _, m := range t.List() {
		err := m.Unmount(context.Background())
		if index.ClassOf(err) == index.InUse {
			t.o.Log.Warn("detaching a mount in use", "dir", m.Request.Dir, "error", err)
			err = m.Close()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Wait returns when nothing is mounted any more.
func (t *Table) Wait() { t.served.Wait() }

// Unmount flushes and detaches the mount at dir, with force from under its users. With an error that is an
// *fs.Unfinished the mount is gone all the same.
func (t *Table) Unmount(ctx context.Context, dir string, force bool) error {
	e := t.At(dir)
	if e == nil {
		return &index.Error{Class: index.NotFound, Op: "umount", File: dir,
			Err: errors.New("this store is not mounted there")}
	}
	err := e.Unmount(ctx)
	if force && index.ClassOf(err) == index.InUse {
		err = e.Close()
	}
	if unfinished := (*fs.Unfinished)(nil); err != nil && !errors.As(err, &unfinished) {
		return fmt.Errorf("umount %s: %w", dir, err)
	}
	select {
	case <-e.gone:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// At gives the mount at a directory, nil without one.
func (t *Table) At(dir string) *Mounted {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at[dir]
}

// Drop takes a private mount away. CRIU, which has just ended, may still have files of it open; any other user loses
// access.
func (t *Table) Drop(dir string) error {
	e := t.At(dir)
	if e == nil {
		return nil
	}
	err := e.Unmount(context.Background())
	if index.ClassOf(err) == index.InUse {
		err = e.Close()
	}
	<-e.gone
	return err
}

// DropLater is Drop in the background: the mount holds the daemon, and Wait waits for it. Errors are logged with note.
func (t *Table) DropLater(dir string, note ...any) {
	t.served.Go(func() {
		if err := t.Drop(dir); err != nil {
			t.o.Log.Error("could not clear up after a restore", append(note, "error", err)...)
		}
	})
}

// List gives a snapshot of the table, ordered by directory.
func (t *Table) List() []*Mounted {
	t.mu.Lock()
	defer t.mu.Unlock()
	byDir := func(a, b *Mounted) int { return strings.Compare(a.Request.Dir, b.Request.Dir) }
	return slices.SortedFunc(maps.Values(t.at), byDir)
}

// Public tells that there is a mount that does not go with a restore.
func (t *Table) Public() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.at {
		if !m.Request.Private {
			return true
		}
	}
	return false
}

// None tells that nothing is mounted.
func (t *Table) None() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.at) == 0
}
