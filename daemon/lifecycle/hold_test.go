package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/mounts"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

func noMount(context.Context, *index.Store, mounts.Request, mounts.OnAccess) (mounts.Mount, error) {
	return nil, errors.New("nothing is mounted here")
}

// TestHeldOrGone has clients meet daemons that come and go: each finds one that serves it, or none, and never one
// that leaves.
func TestHeldOrGone(t *testing.T) {
	dir := newStore(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stop := make(chan struct{})
	var daemons sync.WaitGroup
	daemons.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			await := time.Duration(1+n%30) * time.Millisecond
			d, err := Start(ctx, Options{Dir: dir, Index: small(), Mount: noMount, Await: await})
			if err == nil {
				err = d.Run(ctx)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	served := 0
	for tries := 0; tries < 300 || served < 3; tries++ {
		s, ok, err := client.ConnectDaemon(ctx, dir)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			time.Sleep(time.Millisecond)
			continue
		}
		if _, err := service.LiveStats.Do(ctx, s, service.StatsRequest{}, wire.Streams{}); err != nil {
			t.Fatalf("a daemon that was found does not serve: %v", err)
		}
		served++
		s.Close()
	}
	close(stop)
	daemons.Wait()
	t.Logf("served %d times", served)
}

// TestHeldForARestore has a client come and go before a successor has taken over the restore that it was started for:
// the daemon does not leave with that client, but when it is let go, and refuses to remove the checkpoint until then.
func TestHeldForARestore(t *testing.T) {
	dir := newStore(t)
	store, err := index.Open(t.Context(), dir, small())
	if err != nil {
		t.Fatal(err)
	}
	var info index.Info
	draft, err := store.Create(t.Context(), "c", index.CreateOptions{})
	if err == nil {
		info, err = draft.Seal(t.Context())
	}
	if err = errors.Join(err, store.Close()); err != nil {
		t.Fatal(err)
	}
	d, err := Start(t.Context(), Options{Dir: dir, Index: small(), Mount: noMount, adopts: info.ID})
	if err != nil {
		t.Fatal(err)
	}
	remove := func() error {
		s := connect(t, dir, true)
		defer s.Close()
		_, err := service.Remove.Do(t.Context(), s, service.RemoveRequest{Names: []string{"c"}}, wire.Streams{})
		return err
	}
	if err := remove(); index.ClassOf(err) != index.InUse {
		t.Errorf("before the restore is taken over: %v", err)
	}
	select {
	case <-d.lifetime.Idle():
		t.Error("it leaves")
	case <-time.After(100 * time.Millisecond):
	}
	if !d.lifetime.Hold() {
		t.Error("the restore cannot hold it")
	}
	d.adopted()
	if err := remove(); err != nil {
		t.Errorf("when the restore is over: %v", err)
	}
	d.lifetime.Release()
	if err := d.Run(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestDaemonThatDoesNotListen has commands come while a daemon has the store and no socket, as when it starts or ends:
// they wait until the store is free. Few of their daemons are in its way meanwhile.
func TestDaemonThatDoesNotListen(t *testing.T) {
	dir := newStore(t)
	o := Options{Dir: dir, Index: small(), Mount: noMount, Await: time.Minute}
	d, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	wire.Operations.Remove(dir)
	const closed = 3 * time.Second
	begin := time.Now()
	ended := make(chan error, 1)
	time.AfterFunc(closed, func() { ended <- d.Close() })

	starts := 0
	var next *Daemon
	s, err := client.ConnectOrStart(t.Context(), dir, func(ctx context.Context) (mounts.Result, error) {
		starts++
		var err error
		if next, err = Start(ctx, o); err != nil {
			return mounts.Result{}, wire.NewError(err).Err() // as it comes from another process
		}
		return next.Serving(), nil
	})
	if err != nil {
		t.Fatal(errors.Join(err, <-ended))
	}
	s.Close()
	if err := errors.Join(<-ended, next.Close()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); starts > 7+int(took/time.Second) {
		t.Errorf("%d daemons were started in %v", starts, took)
	}

	if d, err = Start(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	wire.Operations.Remove(dir)
	time.AfterFunc(closed, func() { ended <- d.Close() })
	s, err = client.Connect(t.Context(), dir, small())
	if err = errors.Join(err, <-ended); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestDaemonThatLeaves has commands come while a daemon leaves, which takes it longer than a command is waited for: all
// have the store afterwards, one after the other.
func TestDaemonThatLeaves(t *testing.T) {
	for name, readOnly := range map[string]bool{"of this version": false, "of an older one": false, "a reader": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := newStore(t)
			store, err := index.Open(t.Context(), dir, small())
			if err == nil {
				err = store.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			o := Options{Dir: dir, Index: small(), Mount: noMount, Await: time.Minute}
			o.Index.ReadOnly = readOnly
			d, err := Start(t.Context(), o)
			if err == nil && name == "of an older one" {
				err = os.WriteFile(filepath.Join(dir, "lock"), []byte("process 1 (gpucr-fs)\n"), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			d.lifetime.Stop()
			ended := make(chan error, 1)
			time.AfterFunc(4*time.Second, func() { ended <- d.Close() })
			var commands sync.WaitGroup
			for range 4 {
				commands.Go(func() {
					s, err := client.Connect(t.Context(), dir, small())
					if err == nil {
						time.Sleep(150 * time.Millisecond)
						err = s.Close()
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			commands.Wait()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCommandHoldsTheStore has a command come while another one has the store open: it is told who that is, and soon.
func TestCommandHoldsTheStore(t *testing.T) {
	dir := newStore(t)
	store, err := index.Open(t.Context(), dir, small())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	begin := time.Now()
	_, err = client.Connect(t.Context(), dir, small())
	if index.ClassOf(err) != index.InUse || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("told after %v", took)
	}
}
