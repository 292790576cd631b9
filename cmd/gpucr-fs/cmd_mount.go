package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/label"
	"github.com/gpucr/gpucr-fs/daemon/lifecycle"
	"github.com/gpucr/gpucr-fs/daemon/mounts"
	"github.com/gpucr/gpucr-fs/fs"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/keyring"
)

// logLimit is the size in bytes at which the daemon's log is put aside.
const logLimit = 4 << 20

// daemonSpec is everything a daemon is started with.
type daemonSpec struct {
	Store     string         `json:"store"` // absolute
	Mount     mounts.Request `json:"mount"`
	CacheSize int64          `json:"cache_size"`
	FreeFloor int64          `json:"free_floor"`
	Workers   int            `json:"workers"`
	Log       string         `json:"log"` // absolute
	Debug     bool           `json:"debug"`
	Restores  bool           `json:"restores,omitempty"` // started by gpucr-fs restore
	Stays     bool           `json:"stays,omitempty"`    // started by gpucr-fs serve
	ReadOnly  bool           `json:"read_only,omitempty"`
	// RemoteTimeout is index.Options.DistantTimeout.
	RemoteTimeout time.Duration `json:"remote_timeout,omitempty"`
	// Access says by which file or command an encrypted store is opened. The key itself is never passed on.
	Access keyring.Access `json:"access,omitzero"`
}

func (a *app) mountCmd() *cobra.Command {
	var spec daemonSpec
	var foreground bool
	c := &cobra.Command{
		Use:   "mount STORE DIR",
		Short: "show a store as image directories",
		Long: `Mount shows a store at the directory DIR, and returns when the mount works. DIR itself is the checkpoint
that was sealed last, or the one that --checkpoint names. DIR/.checkpoints/NAME is every checkpoint. Make a
directory in DIR/.checkpoints to begin a new checkpoint for criu dump. With --new NAME, DIR itself is a new
checkpoint.

A daemon serves the mount and keeps the store open until its last mount is gone. All commands work meanwhile. A
second mount of the same store uses the same daemon, with its --cache-size, --free-floor, --workers,
--remote-timeout and --log-file. Mount removes what a killed daemon left at DIR.

A store that cannot be written, because of its permissions or a read-only disk, is opened for reading only, as with
--read-only. Its sealed checkpoints can be restored, but nothing can be dumped, and no profiles are recorded. The
daemon's sockets and log are then in /run/gpucr-fs. Unmount such a store before you write to it.`,
		Example: "  gpucr-fs mount store/ /images\n" +
			"  criu restore -D /images\n\n" +
			"  gpucr-fs mount --new web-3 store/ /mnt/web-3\n" +
			"  criu dump -t 4711 -D /mnt/web-3",
		Args: positional,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if spec.Store, err = filepath.Abs(args[0]); err != nil {
				return err
			}
			if spec.Mount.Dir, err = client.MountPoint(args[1]); err != nil {
				return err
			}
			toStderr := foreground && spec.Log == ""
			if err := absToken(&spec.Mount); err != nil {
				return err
			}
			spec.Mount.ReadOnly = a.index.readOnly
			if spec.Log == "" {
				spec.Log = lifecycle.DefaultLog(spec.Store, a.index.readOnly)
			}
			if spec.Log, err = filepath.Abs(spec.Log); err != nil {
				return err
			}
			spec.RemoteTimeout = a.index.remote
			if spec.Access, err = a.index.absolute(); err != nil {
				return err
			}
			spec.CacheSize, spec.FreeFloor, spec.Workers, spec.Debug = int64(a.index.cache), int64(
				a.index.floor,
			), a.index.workers, spec.Mount.Debug
			if foreground {
				return a.mountForeground(cmd.Context(), spec, toStderr)
			}
			p := a.progress("mount")
			res, err := client.MountAt(cmd.Context(), spec.Store, spec.Mount,
				func(ctx context.Context) (mounts.Result, error) { return spawn(ctx, spec) })
			p.close()
			if err != nil {
				return err
			}
			return a.printMount(res)
		},
	}
	f := c.Flags()
	f.StringVar(
		&spec.Mount.Checkpoint, "checkpoint", "",
		"show `NAME` (a name, a tag or the beginning of an ID) instead of the one sealed last",
	)
	f.StringVar(&spec.Mount.New, "new", "", "show a new checkpoint `NAME`, for writing")
	f.BoolVarP(&foreground, "foreground", "f", false, "stay in the foreground until unmounted or interrupted")
	f.BoolVar(
		&spec.Mount.AllowOther, "allow-other", false,
		"let other users than root in, as far as file modes allow; criu needs this to restore user namespaces",
	)
	f.IntVar(&spec.Mount.ReadaheadKB, "readahead", 0, "`KIB` the kernel reads ahead (default 8192)")
	a.serving(c, &spec.Mount)
	f.StringVar(
		&spec.Log, "log-file", "", "the daemon's log `FILE` (default STORE/daemon.log; stderr in the foreground)",
	)
	f.BoolVar(&spec.Mount.Debug, "debug", false, "log every request")
	a.reads(c)
	return c
}

func (a *app) printMount(res mounts.Result) error {
	if res.ReadOnly && !a.quiet {
		a.note("the store is open for reading only")
	}
	return a.done(res, func(w io.Writer) {
		fmt.Fprintf(w, "mounted %s at %s\n", res.Store, res.Dir)
		printServed(w, res)
	})
}

// awaitStarter is how long a daemon without a mount waits for its starter to connect.
const awaitStarter = 30 * time.Second

// spec is what a daemon is started with by commands that need one.
func (a *app) spec(store string) (daemonSpec, error) {
	access, err := a.index.absolute()
	if err != nil {
		return daemonSpec{}, err
	}
	abs, err := filepath.Abs(store)
	return daemonSpec{Store: abs, Access: access, CacheSize: int64(a.index.cache), FreeFloor: int64(a.index.floor),
		Workers: a.index.workers, RemoteTimeout: a.index.remote, Log: lifecycle.DefaultLog(abs, false)}, err
}

// options are the daemon's.
func (s daemonSpec) options(log *slog.Logger) (lifecycle.Options, error) {
	o := lifecycle.Options{
		Dir: s.Store, Logger: log, Version: version, Mount: mounter(log), Restores: s.Restores, Stays: s.Stays,
		Driver: func() (io.Closer, error) { return (&cudaFlags{}).client(slog.New(slog.DiscardHandler)) },
		Index: index.Options{CacheSize: s.CacheSize, FreeFloor: s.FreeFloor, Workers: s.Workers,
			ReadOnly: s.Mount.ReadOnly || s.ReadOnly, DistantTimeout: s.RemoteTimeout, Access: s.Access},
	}
	self, err := program()
	if err != nil {
		return o, err
	}
	s.Mount, s.Restores, s.Stays, s.ReadOnly = mounts.Request{}, false, false, o.Index.ReadOnly
	spec, err := json.Marshal(s)
	o.Guardian, o.Successor = []string{self, "guardian"}, []string{self, "daemon", "--successor", string(spec)}
	return o, err
}

// program is this program's path, by the name it was started with where that leads to it.
func program() (string, error) {
	if p, err := exec.LookPath(os.Args[0]); err == nil {
		if p, err = filepath.Abs(p); err == nil {
			named, err1 := os.Stat(p)
			self, err2 := os.Stat("/proc/self/exe")
			if errors.Join(err1, err2) == nil && os.SameFile(named, self) {
				return p, nil
			}
		}
	}
	return os.Executable()
}

// needStore refuses a folder that is no store.
func needStore(dir string) error {
	_, err := os.Stat(filepath.Join(dir, "config.json"))
	switch {
	case errors.Is(err, iofs.ErrPermission):
		return err
	case err != nil:
		return &index.Error{
			Class: index.NoStore,
			Op:    "mount",
			Hint:  "make one with: gpucr-fs init STORE",
			Err:   fmt.Errorf("%s is not a store", dir),
		}
	}
	return nil
}

// spawn starts this program again as the daemon.
func spawn(ctx context.Context, spec daemonSpec) (mounts.Result, error) {
	// A folder that is no store must not get a log.
	if err := needStore(spec.Store); err != nil {
		return mounts.Result{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return mounts.Result{}, err
	}
	return lifecycle.Spawn(ctx, self, []string{os.Args[0], "daemon"}, spec, spec.Log)
}

func (a *app) mountForeground(ctx context.Context, spec daemonSpec, toStderr bool) error {
	var log io.Writer = a.err
	if !toStderr {
		file, err := lifecycle.OpenLogFile(spec.Log, logLimit)
		if err != nil {
			return err
		}
		defer file.Close()
		log = file
	}
	return untilSettled(ctx, spec.Store, func(settled func()) error {
		s, ok, err := client.ConnectDaemon(ctx, spec.Store)
		if err != nil {
			return err
		}
		if ok {
			s.Close()
			settled()
			return &index.Error{Class: index.InUse, Op: "mount", Err: errors.New("a daemon serves the store already"),
				Hint: "drop -f to add a mount to it"}
		}
		return serve(ctx, spec, log, func(res mounts.Result, err error) error {
			if err != nil {
				return err
			}
			settled()
			context.AfterFunc(ctx, func() { _ = notify("STOPPING=1") }) // there is nobody to tell that it failed
			return errors.Join(a.printMount(res), notify("READY=1"))
		})
	})
}

// untilSettled calls try again while another command has the store open, see client.WhileInUse. Once try has called
// settled, its error is the last one.
func untilSettled(ctx context.Context, store string, try func(settled func()) error) error {
	var last error
	return errors.Join(client.WhileInUse(ctx, store, func() error {
		over := false
		err := try(func() { over = true })
		if over {
			last, err = err, nil
		}
		return err
	}), last)
}

// serve is the life of a daemon. ready is told once whether the mount serves.
func serve(ctx context.Context, spec daemonSpec, log io.Writer, ready func(mounts.Result, error) error) error {
	logger := spec.logger(log)
	o, err := spec.options(logger)
	if err != nil {
		return ready(mounts.Result{}, err)
	}
	if spec.Mount.Dir == "" && !spec.Stays {
		o.Await = awaitStarter
	}
	d, err := lifecycle.Start(ctx, o)
	if err != nil {
		return ready(mounts.Result{}, err)
	}
	res := d.Serving()
	if spec.Mount.Dir != "" || spec.Stays {
		if res, err = d.AddMount(ctx, spec.Mount); err != nil {
			return errors.Join(ready(res, err), d.Close())
		}
	}
	if err := ready(res, nil); err != nil {
		return errors.Join(err, d.Close())
	}
	return d.Run(ctx)
}

func (s daemonSpec) logger(w io.Writer) *slog.Logger {
	level := slog.LevelInfo
	if s.Debug {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// mounter makes mounts with package fs.
func mounter(
	log *slog.Logger,
) func(context.Context, *index.Store, mounts.Request, mounts.OnAccess) (mounts.Mount, error) {
	return func(ctx context.Context, s *index.Store, r mounts.Request, onAccess mounts.OnAccess) (mounts.Mount, error) {
		dir := r.Dir
		if r.Private {
			dir = ""
		}
		m, err := fs.Mount(ctx, s, dir, fs.Options{
			Checkpoint: r.Checkpoint, New: r.New, Tags: r.Tags, Logger: log, ReadaheadKB: r.ReadaheadKB,
			AllowOther: r.AllowOther, Debug: r.Debug, OnAccess: onAccess,
			Labels: label.OfHost(),
		})
		if err != nil {
			return nil, err
		}
		return m, nil
	}
}
