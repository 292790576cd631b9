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

// Succeed runs a successor: it finds a daemon for the restore of spec, the last argument of its command, or becomes the
// daemon. o are the options of the killed daemon.
func Succeed(ctx context.Context, o Options, spec string) error {
	s, err := restores.Decode(spec)
	if err != nil {
		return err
	}
	guardian, setup := uffd.SuccessorFDs()
	for _, fd := range []int{guardian, setup} {
		unix.CloseOnExec(fd)
	}
	// A session of its own, as every daemon has one. It may lead one already.
	unix.Setsid()
	for begin := time.Now(); ; {
		c, ok, err := client.ConnectDaemon(ctx, o.Dir)
		if ok {
			_, err = service.Adopt.Do(
				ctx, c, service.AdoptRequest{Serving: s, PID: os.Getpid(), Wire: guardian, Setup: setup},
				wire.Streams{},
			)
			c.Close()
			if !errors.Is(err, wire.ErrGone) {
				return err
			}
		} else if err == nil {
			var d *Daemon
			// A client that comes before the restore is taken over must not be what the daemon leaves with, nor remove
			// the checkpoint.
			o.adopts = s.Checkpoint
			if d, err = Start(ctx, o); err == nil {
				if err = d.parts.Restores.Adopt(s, os.NewFile(uintptr(guardian), "guardian"),
					os.NewFile(uintptr(setup), "setup")); err != nil {
					return errors.Join(err, d.Close())
				}
				d.adopted()
				return d.Run(ctx)
			}
		}
		if index.ClassOf(err) != index.InUse && !errors.Is(err, wire.ErrGone) || time.Since(begin) > adoptTimeout {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
