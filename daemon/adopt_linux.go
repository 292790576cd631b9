package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/restore/feed"
	"github.com/gpucr/gpucr-fs/restore/uffd"
)

// adoptPatience is how long a successor tries to get hold of the store, or of who holds it: a killed process gives the lock free when its last thread is gone.
const adoptPatience = time.Minute

// encodeServing and decodeServing put a restore's description on a successor's command line.
func encodeServing(s Serving) (string, error) {
	b, err := json.Marshal(s)
	return string(b), err
}

func decodeServing(spec string) (s Serving, err error) {
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		return s, fmt.Errorf("read the restore's description: %w", err)
	}
	return s, nil
}

// AdoptRequest offers a restore whose daemon was killed: its guardian's descriptors are those numbered so in process PID.
type AdoptRequest struct {
	Serving
	PID   int `json:"pid"`
	Wire  int `json:"wire"`
	Setup int `json:"setup"`
}

// AdoptResult says who serves the restore now.
type AdoptResult struct {
	PID int `json:"pid"`
}

// Adopt takes a restore over from a successor that found a daemon running.
var Adopt = define("adopt", func(_ context.Context, env *Env, q AdoptRequest) (AdoptResult, error) {
	if env.Daemon == nil {
		return AdoptResult{}, &index.Error{Class: index.Unsupported, Op: "adopt", Err: errors.New("this needs a daemon")}
	}
	p, err := wire.OpenProcess(q.PID)
	if err != nil {
		return AdoptResult{}, err
	}
	defer p.Close()
	guardian, err := p.Descriptor(q.Wire)
	if err != nil {
		return AdoptResult{}, err
	}
	setup, err := p.Descriptor(q.Setup)
	if err != nil {
		guardian.Close()
		return AdoptResult{}, err
	}
	return AdoptResult{os.Getpid()}, env.Daemon.adopt(q.Serving, guardian, setup)
})

// adopt goes on with a restore; it closes the descriptors.
func (d *Daemon) adopt(s Serving, guardian, setup *os.File) error {
	c, err := d.store.Checkpoint(s.Checkpoint)
	if err != nil {
		return errors.Join(err, guardian.Close(), setup.Close())
	}
	profile, _, err := d.loadProfile(c.Info().ID)
	if err != nil {
		return errors.Join(err, guardian.Close(), setup.Close())
	}
	o := d.feedOptions(s, c.Info().ID, nil)
	o.Profile = profile
	f, err := feed.Takeover(o, guardian, setup)
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", c.Info().Name, err)
	}
	d.log.Warn("restore taken over from a daemon that was killed", "restore", s.ID, "checkpoint", c.Info().Name)
	_, err = d.enterRestore(&restoring{Serving: s, name: c.Info().Name, log: o.Logger.With("checkpoint", c.Info().Name), feed: f, replays: profile != nil, resumed: true, adopted: true})
	return err
}

// Succeed is the life of a successor: it finds a daemon for the restore of spec, the last argument of its command, or becomes the daemon. o is what the
// killed daemon had.
func Succeed(ctx context.Context, o Options, spec string) error {
	s, err := decodeServing(spec)
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
		c, ok, err := ConnectDaemon(ctx, o.Dir)
		if ok {
			_, err = Adopt.Do(ctx, c, AdoptRequest{s, os.Getpid(), guardian, setup}, wire.Streams{})
			c.Close()
			if !errors.Is(err, wire.ErrGone) {
				return err
			}
		} else if err == nil {
			var d *Daemon
			if d, err = Start(ctx, o); err == nil {
				if err = d.adopt(s, os.NewFile(uintptr(guardian), "guardian"), os.NewFile(uintptr(setup), "setup")); err != nil {
					return errors.Join(err, d.Close())
				}
				return d.Run(ctx)
			}
		}
		if index.ClassOf(err) != index.InUse && !errors.Is(err, wire.ErrGone) || time.Since(begin) > adoptPatience {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
