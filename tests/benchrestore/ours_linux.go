package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/gpucr/gpucr-fs/restore"
	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/measure"
)

// ours is gpucr-fs restore with a daemon that serves a mount of the store already, as on a machine where the store is
// in use.
type ours struct {
	b      *bench
	s      *subject
	daemon *cli.Daemon
	result struct {
		Timeline restore.Timeline `json:"timeline"`
	}
}

// prepareOurs starts a daemon. A first restore finds no profile.
func prepareOurs(b *bench, s *subject, first bool) (_ restoring, err error) {
	o := &ours{b: b, s: s}
	if o.daemon, err = b.gpucr.Serve(s.store, s.mnt, "--cache-size", strconv.Itoa(b.cacheSize)+"MiB"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.done())
		}
	}()
	if first {
		if _, err := b.gpucr.Run(b.ctx, "profile", "clear", s.store, checkpointName); err != nil {
			return nil, err
		}
	} else if _, err := b.gpucr.Run(b.ctx, "profile", "show", s.store, checkpointName); err != nil {
		return nil, fmt.Errorf("%w (hint: measure %q as well, it records the profile)", err, wayFirst)
	}
	return o, nil
}

// restore returns when the command says that the process runs, which it does as soon as it may: it is asked to wait for
// the memory as well.
func (o *ours) restore() (resumed time.Time, err error) {
	if err := o.b.gpucr.JSON(o.b.ctx, &o.result, "restore", "--wait", "--criu", o.b.criu, o.s.store,
		checkpointName); err != nil {
		return time.Time{}, err
	}
	return o.mark(restore.MarkResume)
}

func (o *ours) mark(name string) (time.Time, error) { return measure.Mark(&o.result.Timeline, name) }

func (o *ours) resident() (time.Time, error) { return o.mark(restore.MarkResident) }

// peakMB is the daemon's.
func (o *ours) peakMB() float64 { return o.daemon.PeakMB() }

func (o *ours) done() error { return o.daemon.Stop() }
