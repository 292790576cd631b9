package lifecycle

import (
	"context"
	"errors"
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
		for {
			select {
			case <-stop:
				return
			default:
			}
			d, err := Start(ctx, Options{Dir: dir, Index: small(), Mount: noMount, Await: time.Millisecond})
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
	for range 300 {
		s, ok, err := client.ConnectDaemon(ctx, dir)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
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
