package client

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"path/filepath"
	"syscall"

	"github.com/gpucr/gpucr-fs/daemon/mounts"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/fs"
	"github.com/gpucr/gpucr-fs/index"
)

// MountAt mounts the store: in its daemon if one runs, else in one that start makes.
func MountAt(
	ctx context.Context,
	store string,
	r mounts.Request,
	start func(context.Context) (mounts.Result, error),
) (mounts.Result, error) {
	err := r.Validate()
	if err == nil {
		r.Namespace, err = fs.Namespace()
	}
	if err != nil {
		return mounts.Result{}, err
	}
	var res mounts.Result
	var last error
	err = WhileInUse(ctx, store, func() error {
		s, ok, err := ConnectDaemon(ctx, store)
		if err == nil && !ok {
			res, err = start(ctx)
			return err
		}
		if err != nil {
			return err
		}
		defer s.Close()
		res, err = service.AddMount.Do(ctx, s, r, wire.Streams{})
		if errors.Is(err, wire.ErrNoDaemon) || errors.Is(err, index.ErrDaemonHolds) { // it leaves
			return err
		}
		last = err
		return nil
	})
	if err == nil {
		err = last
	}
	return res, err
}

// UnmountAtResult says what unmounting found.
type UnmountAtResult struct {
	Dir   string `json:"dir"`
	Store string `json:"store"`
	Stale bool   `json:"stale"` // the daemon was dead; only the mount was left
	Last  bool   `json:"last"`  // the daemon is gone, too
	// Unfinished is what was left when the mount had gone: checkpoints that were not complete.
	Unfinished []string `json:"unfinished,omitempty"`
	// Lacking are the sealed checkpoints that the remote store is not known to have.
	Lacking []string `json:"lacking,omitempty"`
}

// UnmountAt unmounts what is at dir and waits until all is flushed; where it was the daemon's last mount, until the
// daemon is gone and the store is free. It waits for uploads to the remote store, and calls tell with their progress.
func UnmountAt(ctx context.Context, dir string, force bool, tell func(wire.Progress)) (UnmountAtResult, error) {
	res := UnmountAtResult{Dir: dir}
	store, ok, err := fs.Mounted(dir)
	if err != nil {
		return res, fmt.Errorf("umount %s: %w", dir, err)
	}
	if !ok {
		return res, &index.Error{
			Class: index.NotFound,
			Op:    "umount",
			File:  dir,
			Err:   errors.New("no store is mounted there"),
		}
	}
	res.Store = store
	var last error
	err = WhileInUse(ctx, store, func() error {
		s, ok, err := ConnectDaemon(ctx, store)
		if err != nil {
			return err
		}
		if !ok {
			return res.withoutDaemon(newWait(store).look(ctx))
		}
		defer s.Close()
		last = res.through(ctx, s, force, tell)
		return nil
	})
	if err == nil {
		err = last
	}
	if errors.Is(err, errStillHeld) {
		err = nil // it is unmounted; who has the store now may be somebody else
	}
	return res, err
}

// errStillHeld: it is unmounted, and the store is not free.
var errStillHeld = fmt.Errorf("the store is still open: %w", index.ErrDaemonHolds)

// withoutDaemon unmounts what a killed daemon has left. One that leaves unmounts it by itself: Class InUse until it has
// ended.
func (res *UnmountAtResult) withoutDaemon(seen state) error {
	dir := res.Dir
	if _, mounted, err := fs.Mounted(dir); err == nil && !mounted {
		if seen.listens || seen.held {
			return &index.Error{Class: index.InUse, Op: "umount", File: dir, Err: errStillHeld}
		}
		res.Last = true
		return nil
	}
	var err error
	res.Stale, err = fs.ClearStale(dir)
	if err == nil && !res.Stale {
		err = &index.Error{
			Class: index.InUse,
			Op:    "umount",
			File:  dir,
			Err:   errors.New("its daemon does not answer"),
			Hint:  "detach it with umount -l",
		}
	}
	return err
}

// through has the daemon unmount it.
func (res *UnmountAtResult) through(ctx context.Context, s *Session, force bool, tell func(wire.Progress)) error {
	dir := res.Dir
	one, err := service.Unmount.Do(ctx, s, service.UnmountRequest{Dir: dir, Force: force}, wire.Streams{Progress: tell})
	if err != nil {
		return err
	}
	res.Unfinished, res.Lacking = one.Unfinished, one.Lacking
	if res.Last = one.Last; res.Last {
		err = s.WaitDaemon(ctx)
	}
	return err
}

// MountPoint makes dir absolute and free of links, without touching a mount at it that may be dead.
func MountPoint(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(abs)
	if errors.Is(err, syscall.ENOTCONN) {
		parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
		return filepath.Join(parent, filepath.Base(abs)), err
	}
	if errors.Is(err, iofs.ErrNotExist) {
		return "", &index.Error{
			Class: index.NotFound,
			Op:    "mount",
			File:  dir,
			Err:   errors.New("no such directory"),
			Hint:  "make it with mkdir",
		}
	}
	return real, err
}
