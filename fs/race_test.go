package fs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"
)

// TestLogStaysWhileOthersLook seals and removes checkpoints while others list the mount, look names up before, while
// and after they exist, and go into what they find. A log written beside the images is there as long as its checkpoint.
func TestLogStaysWhileOthersLook(t *testing.T) {
	const rounds, lanes = 120, 3
	s := newStore(t)
	srv := mounted(t, s, Options{Logger: quiet()})
	top := filepath.Join(srv.Dir(), topName)

	stop := make(chan struct{})
	var lookers sync.WaitGroup
	looker := func(look func(i int)) {
		lookers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					look(i)
				}
			}
		})
	}
	name := func(lane, i int) string { return fmt.Sprintf("dump-%d-%d", lane, i) }
	var at [lanes]struct {
		sync.Mutex
		i int
	}
	looker(func(int) { _, _ = os.ReadDir(top) })
	looker(func(int) { _, _ = os.ReadDir(srv.Dir()) })
	for lane := range lanes {
		looker(func(k int) {
			at[lane].Lock()
			i := at[lane].i
			at[lane].Unlock()
			var st syscall.Stat_t
			_ = syscall.Stat(filepath.Join(top, name(lane, i+k%2), "dump.log"), &st)
		})
	}

	var g errgroup.Group
	for lane := range lanes {
		g.Go(func() error {
			for i := range rounds {
				at[lane].Lock()
				at[lane].i = i
				at[lane].Unlock()
				if err := dumpOnce(srv, filepath.Join(top, name(lane, i)), i%3 == 0); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := g.Wait()
	close(stop)
	lookers.Wait()
	must(t, err)
}

// openImage opens an image as a reader does that knows nothing of the seal.
func openImage(dir string) error {
	f, err := os.Open(filepath.Join(dir, "inventory.img"))
	if err != nil {
		return err
	}
	return f.Close()
}

// dumpOnce makes a checkpoint with a log, seals it and, if told so, removes it.
func dumpOnce(srv *Server, dir string, remove bool) error {
	text := []byte("log of " + dir)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, f := range []string{"inventory.img", "dump.log"} {
		if err := os.WriteFile(filepath.Join(dir, f), text, 0o644); err != nil {
			return err
		}
	}
	name := filepath.Base(dir)
	sealed := make(chan struct{})
	var g errgroup.Group
	g.Go(func() error {
		for {
			if err := openImage(dir); err != nil {
				return err
			}
			select {
			case <-sealed:
				return nil
			default:
			}
		}
	})
	_, err := srv.Seal(context.Background(), name)
	close(sealed)
	if err := errors.Join(err, g.Wait()); err != nil {
		return err
	}
	for range 3 {
		got, err := os.ReadFile(filepath.Join(dir, "dump.log"))
		if err != nil || string(got) != string(text) {
			return fmt.Errorf("after the seal the log is %q, %w", got, err)
		}
	}
	if !remove {
		return nil
	}
	if err := srv.store.Remove(context.Background(), []string{name}); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, "dump.log")); err == nil {
		return fmt.Errorf("%s: the log is there without its checkpoint", name)
	}
	return nil
}
