package fs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/gpucr/gpucr-fs/index"
)

// maxWrite is the largest READ and WRITE, the kernel's limit without a raised fs.fuse.max_pages_limit.
const maxWrite = 1 << 20

// Server is a mounted store.
type Server struct {
	store   *index.Store
	dir     string // mount point, absolute; "": attached nowhere
	opts    Options
	log     *slog.Logger
	uid     uint32
	gid     uint32
	started time.Time
	count   counters
	scratch *pool
	cat     *catalog
	root    *view
	top     *topNode
	fuse    *fuse.Server
	handle  *os.File // the root of a mount that is attached nowhere, else nil
	cancel  func()   // of the subscription

	mu      sync.Mutex
	handles map[closer]struct{}

	done chan struct{} // closed when all is over
	err  error         // set before done is closed
}

// closer is an open file, which the kernel forgets to close when the mount is forced away.
type closer interface{ close() error }

// Mount shows store at dir, which must be an existing directory outside of the store. It returns when the mount serves;
// ctx bounds only that. What a killed daemon left at dir is cleared first. The store must stay open until Wait returns.
//
// With dir "" the mount is attached nowhere: it is in no mount namespace and has no path, and Server.Root leads into
// it, in any namespace to which that descriptor is passed. The kernel then lets every user read it.
func Mount(ctx context.Context, store *index.Store, dir string, o Options) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.setDefaults()
	s := &Server{
		store: store, opts: o, log: o.Logger, uid: uint32(os.Geteuid()), gid: uint32(os.Getegid()), started: time.Now(),
		cat: newCatalog(
			store,
			o.Labels,
		), scratch: newPool(store.Dir(), o.ScratchBytes), handles: map[closer]struct{}{}, done: make(chan struct{}),
	}
	if dir != "" {
		if err := s.checkDir(dir); err != nil {
			return nil, err
		}
	}
	s.cancel = store.Subscribe(s.cat.changed)
	if err := s.mount(ctx); err != nil {
		s.cancel()
		return nil, err
	}
	return s, nil
}

// checkDir settles the mount point.
func (s *Server) checkDir(dir string) (err error) {
	if s.dir, err = mountPoint(dir); err != nil {
		return &index.Error{Class: index.NotFound, Op: "mount", File: dir, Err: err, Hint: "make the directory first"}
	}
	if cleared, err := ClearStale(s.dir); err != nil {
		return err
	} else if cleared {
		s.log.Info("cleared a stale mount", "dir", s.dir)
	}
	if held, ok, err := Mounted(s.dir); err != nil {
		return err
	} else if ok {
		return &index.Error{Class: index.InUse, Op: "mount", File: s.dir,
			Err: fmt.Errorf("store %s is mounted there", held), Hint: "unmount it first"}
	}
	if fi, err := os.Stat(s.dir); err != nil {
		return &index.Error{Class: index.NotFound, Op: "mount", File: s.dir, Err: err, Hint: "make the directory first"}
	} else if !fi.IsDir() {
		return &index.Error{Class: index.Invalid, Op: "mount", File: s.dir, Err: errors.New("not a directory")}
	}
	store, err := filepath.EvalSymlinks(s.store.Dir())
	if err != nil {
		return err
	}
	if within(s.dir, store) || within(store, s.dir) {
		return &index.Error{
			Class: index.Invalid,
			Op:    "mount",
			File:  s.dir,
			Err:   errors.New("store and mount point lie within each other"),
			Hint:  "mount it elsewhere",
		}
	}
	return nil
}

func within(dir, p string) bool {
	return strings.HasPrefix(p+"/", strings.TrimSuffix(dir, "/")+"/")
}

func (s *Server) mount(ctx context.Context) (err error) {
	s.root = &view{s: s, root: true, scratch: map[uint64]*scratchNode{}}
	switch {
	case s.opts.New != "":
		if s.root.img, err = s.cat.create(ctx, s.opts.New, s.opts.Tags); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, s.cat.abort(s.root.img))
			}
		}()
	case s.opts.Checkpoint != "":
		cp, err := s.store.Checkpoint(s.opts.Checkpoint)
		if err != nil {
			return err
		}
		if s.root.img, err = s.cat.image(cp.Info().Name); err != nil {
			return err
		}
	default:
		s.root.follow = true
	}
	goLog := slog.NewLogLogger(s.log.Handler(), slog.LevelWarn)
	mo := fuse.MountOptions{
		FsName: s.store.Dir(), Name: subtype,
		AllowOther: s.opts.AllowOther || s.dir == "", MaxWrite: maxWrite, MaxBackground: s.opts.MaxBackground,
		DisableXAttrs: true, // else the kernel asks for security.capability at every write
		DisableSplice: true, // a 1 MiB reply does not fit a pipe
		// The server is the only one to change content, and says so: an mtime that moved must not cost cached pages.
		ExplicitDataCacheControl: true,
		ExtraCapabilities:        fuse.CAP_ASYNC_DIO,
		Logger:                   goLog, Debug: s.opts.Debug,
	}
	if mo.AllowOther && s.dir != "" {
		mo.Options = append(mo.Options, "default_permissions")
	}
	root := &dirNode{node: node{s: s}, v: s.root}
	s.root.node = root
	s.top = &topNode{dirNode{node: node{s: s}, v: &view{s: s, scratch: map[uint64]*scratchNode{}}}}
	raw := gofs.NewNodeFS(root, &gofs.Options{
		MountOptions: mo, NullPermissions: true, Logger: goLog, RootStableAttr: &gofs.StableAttr{Ino: inoRoot},
		OnAdd: func(ctx context.Context) {
			root.AddChild(
				topName, root.NewPersistentInode(ctx, s.top, gofs.StableAttr{Mode: fuse.S_IFDIR, Ino: inoTop}), false,
			)
		},
	})
	if s.fuse, s.handle, err = newFuseServer(raw, s.dir, &mo); err != nil {
		return &index.Error{
			Class: index.Other,
			Op:    "mount",
			File:  s.dir,
			Err:   err,
			Hint:  "mounting needs root and /dev/fuse",
		}
	}
	go s.serve()
	// NewServer has answered INIT. WaitMount would open a file of the mount from within: a daemon killed at that moment
	// could not end, since closing the file waits for an answer from itself.
	if s.opts.ReadaheadKB > 0 {
		if err := s.setReadahead(s.opts.ReadaheadKB); err != nil {
			s.log.Warn("could not raise the readahead; cold reads will be slower", "dir", s.dir, "error", err)
		}
	}
	return nil
}

// serve runs until the mount is gone, by umount or by the daemon, and then finishes.
func (s *Server) serve() {
	stop := make(chan struct{})
	var janitor sync.WaitGroup
	janitor.Go(func() { s.tidy(stop) })
	s.fuse.Serve()
	close(stop)
	janitor.Wait()
	s.err = s.finish()
	close(s.done)
}

// finish closes what is open and seals the drafts that hold a complete dump.
func (s *Server) finish() error {
	s.cancel()
	s.mu.Lock()
	handles := s.handles
	s.handles = map[closer]struct{}{}
	s.mu.Unlock()
	var errs []error
	for h := range handles {
		if err := h.close(); err != nil {
			errs = append(errs, err)
		}
	}
	s.scratch.close()
	for _, img := range s.cat.open() {
		if err := s.settle(img); err != nil {
			s.log.Error("checkpoint not sealed at unmounting", "checkpoint", img.name, "error", err)
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return &Unfinished{errs}
	}
	return nil
}

// Unfinished is what could not be brought to an end when a mount went: checkpoints were left unsealed, or files could
// not be closed. The mount is gone all the same.
type Unfinished struct{ Errs []error }

func (u *Unfinished) Error() string   { return errors.Join(u.Errs...).Error() }
func (u *Unfinished) Unwrap() []error { return u.Errs }

// settle ends a draft: a complete dump is sealed, an empty one given up, anything else left for the administrator.
func (s *Server) settle(img *image) error {
	d := img.openDraft()
	if d == nil {
		return nil
	}
	if img.complete() {
		_, err := s.seal(context.Background(), img)
		return err
	}
	if l, err := d.ReadDir("."); err == nil && len(l) == 0 {
		return s.cat.abort(img)
	}
	return &index.Error{
		Class:      index.Other,
		Op:         "unmount",
		Checkpoint: img.name,
		Err:        errors.New("no complete dump (inventory.img is missing, or criu was killed): left unsealed"),
		Hint:       "seal it before unmounting if it is wanted; gc removes it",
	}
}

// Dir is the mount point, absolute; "" for a mount that is attached nowhere.
func (s *Server) Dir() string { return s.dir }

// Stats gives live counters.
func (s *Server) Stats() Stats {
	st := s.count.snapshot()
	st.ScratchBytes = s.scratch.used.Load()
	return st
}

// Draft gives a checkpoint that is being written through this mount. Seal it with Server.Seal, not by itself, so that
// the mount follows.
func (s *Server) Draft(name string) (*index.Draft, bool) {
	img, err := s.cat.image(name)
	if err != nil {
		return nil, false
	}
	d := img.openDraft()
	return d, d != nil
}

// Seal makes a checkpoint that is being written through this mount complete and immutable, whatever it holds (see
// index.NeedInventory); its files stay open. Class NotFound when there is none of that name; sealing a sealed one is no
// error.
func (s *Server) Seal(ctx context.Context, name string) (index.Info, error) {
	img, err := s.cat.image(name)
	if err != nil {
		return index.Info{}, err
	}
	return s.seal(ctx, img)
}

// settleLimit is how long Settle waits for a CRIU that has written its inventory: it closes what it has open then, ends
// the processes and writes its statistics.
const settleLimit = time.Minute

// Settle ends a checkpoint whose dump has lost its caller. Without an inventory the checkpoint is given up: further
// writes to it fail, and CRIU lets the processes go on. With an inventory CRIU is about to end the processes, so Settle
// waits for it: when CRIU closes its statistics the checkpoint is sealed. If CRIU ends without them, or not in time,
// the checkpoint is left unsealed and Settle fails, since nobody can tell what was lost. Class NotFound when there is
// none of that name.
func (s *Server) Settle(ctx context.Context, name string) error {
	img, err := s.cat.image(name)
	if err != nil {
		return err
	}
	if complete, err := img.unlessComplete(func() error { return s.cat.abort(img) }); !complete {
		if sealedNow(err) {
			return nil
		}
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	for img.openDraft() != nil && img.dumping() && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	if img.openDraft() == nil {
		return nil
	}
	img.markUnfinished()
	return &index.Error{
		Class:      index.Other,
		Op:         "dump",
		Checkpoint: img.name,
		Err:        errors.New("criu did not bring its dump to an end: left unsealed"),
		Hint:       "seal it if its processes have ended; gc removes it",
	}
}

// Failure gives the first error of a write to a checkpoint that is being written through this mount, nil without one.
// The writer was told an errno alone.
func (s *Server) Failure(name string) error {
	img, err := s.cat.image(name)
	if err != nil {
		return nil
	}
	if failed := img.failed.Load(); failed != nil {
		return *failed
	}
	return nil
}

// Discard gives a checkpoint up that is being written through this mount: what is written to it from now on fails.
// Class NotFound when there is none of that name, ReadOnly when it is sealed.
func (s *Server) Discard(name string) error {
	img, err := s.cat.image(name)
	if err != nil {
		return err
	}
	return s.cat.abort(img)
}

func (s *Server) seal(ctx context.Context, img *image) (index.Info, error) {
	return s.cat.seal(ctx, img)
}

// Wait returns when the mount is gone, by Unmount or by umount(8), and its drafts are settled; the error says what
// could not be sealed.
func (s *Server) Wait() error {
	<-s.done
	return s.err
}

// Unmount takes the mount away and seals the drafts that hold a complete dump. Class InUse when files are open there or
// someone works in it; then nothing has changed. Copies of the mount that other mount namespaces hold (a container
// started meanwhile has one) do not hold it up: their connection is aborted.
func (s *Server) Unmount(ctx context.Context) error {
	select {
	case <-s.done:
		return s.err
	default:
	}
	if s.handle != nil {
		return s.letGo(ctx, unmountTimeout)
	}
	own, mounted, err := ownMount(s.dir)
	if err != nil {
		return err
	}
	var c *connection
	var cerr error
	if mounted {
		if c, cerr = connectionOf(own.dev); cerr == nil {
			defer c.close()
		}
	}
	if err := s.detach(ctx); err != nil {
		return err
	}
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(unmountTimeout):
	}
	if c != nil {
		cerr = c.abort()
	}
	if cerr != nil {
		s.log.Warn("unmounted here, but another mount namespace holds a copy", "dir", s.dir, "error", cerr)
	}
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unmountTimeout is how long Unmount waits for users to go, those that CRIU or a shell just ended are still closing
// their files, and then for the kernel to end the connection.
const unmountTimeout = time.Second

func (s *Server) detach(ctx context.Context) error {
	end := time.Now().Add(unmountTimeout)
	for {
		err := unmount(s.dir, false)
		if index.ClassOf(err) != index.InUse || time.Now().After(end) {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// Close takes the mount away even from under its users, who get ENOTCONN, and waits as Wait does.
func (s *Server) Close() error {
	select {
	case <-s.done:
		return nil
	default:
	}
	if s.handle != nil {
		return s.letGo(context.Background(), 0)
	}
	if err := unmount(s.dir, true); err != nil {
		return err
	}
	return s.Wait()
}

func (s *Server) opened(h closer) {
	s.count.handles.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handles[h] = struct{}{}
}

func (s *Server) released(h closer) {
	s.count.handles.Add(-1)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.handles, h)
}

// viewOf gives the place of img below .checkpoints.
func (s *Server) viewOf(img *image) *view {
	img.mu.Lock()
	defer img.mu.Unlock()
	if img.view == nil {
		img.view = &view{s: s, name: img.name, img: img, scratch: map[uint64]*scratchNode{}}
	}
	return img.view
}
