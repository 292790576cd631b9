package lifecycle

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/restores"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/restore/uffd"
)

// adoptTimeout is how long a successor tries to get hold of the store, or of the one who holds it: a killed process
// gives the lock free when its last thread is gone.
const adoptTimeout = time.Minute

// adoptPause is how long it waits for the next try, adoptPauseLong after what passes with time: a full disk, or a lack
// of descriptors.
const (
	adoptPause     = 20 * time.Millisecond
	adoptPauseLong = 500 * time.Millisecond
)

// Succeed runs a successor: it finds a daemon for the restore of spec, the last argument of its command, or becomes the
// daemon. o are the options of the killed daemon.
func Succeed(ctx context.Context, o Options, spec string) error {
	s, err := restores.Decode(spec)
	if err != nil {
		return err
	}
	guardian, setup := uffd.SuccessorFDs()
	unix.CloseOnExec(guardian)
	unix.CloseOnExec(setup)
	// A session of its own, as every daemon has one. It may lead one already.
	unix.Setsid()
	return succeed(ctx, o, s, guardian, setup)
}

func succeed(ctx context.Context, o Options, s restores.Serving, guardian, setup int) error {
	for begin := time.Now(); ; {
		c, ok, err := client.ConnectDaemon(ctx, o.Dir)
		if ok {
			_, err = service.Adopt.Do(
				ctx, c, service.AdoptRequest{Serving: s, PID: os.Getpid(), Wire: guardian, Setup: setup},
				wire.Streams{},
			)
			c.Close()
			if err == nil {
				return nil
			}
		} else if err == nil {
			var d *Daemon
			// A client that comes before the restore is taken over must not be what the daemon leaves with, nor remove
			// the checkpoint.
			o.adopts = s.Checkpoint
			if d, err = Start(ctx, o); err == nil {
				if err = adopt(d, s, guardian, setup); err == nil {
					// The guardian is to see the end of the daemon's own copy.
					unix.Close(guardian)
					unix.Close(setup)
					d.adopted()
					return d.Run(ctx)
				}
				err = errors.Join(err, d.Close())
			}
		}
		busy := index.ClassOf(err) == index.InUse || errors.Is(err, wire.ErrGone)
		if isFinal(err) || time.Since(begin) > adoptTimeout || !busy && !uffd.Untaken(guardian) {
			return err
		}
		pause := adoptPause
		if !busy {
			o.Logger.Warn("a restore cannot be taken over yet, trying again", "restore", s.ID, "error", err)
			pause = adoptPauseLong
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// isFinal tells that trying again is of no use.
func isFinal(err error) bool {
	switch index.ClassOf(err) {
	case index.Corrupt, index.NotFound, index.NoStore, index.Unsupported, index.Invalid, index.Locked:
		return true
	}
	return errors.Is(err, context.Canceled)
}

// adopt has a daemon go on with a restore, by copies of the descriptors: another daemon may have to.
func adopt(d *Daemon, s restores.Serving, guardian, setup int) error {
	var files []*os.File
	for _, of := range []int{guardian, setup} {
		fd, err := unix.FcntlInt(uintptr(of), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			return os.NewSyscallError("dup", err)
		}
		files = append(files, os.NewFile(uintptr(fd), "successor"))
	}
	return d.parts.Restores.Adopt(s, files[0], files[1])
}
