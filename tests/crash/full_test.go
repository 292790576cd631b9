package crash

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/cli"
)

var fullRounds = flag.Int("crash.full", 4, "rounds in which somebody else fills the disk")

// fileSystem mounts a new ext4 of size MiB, the file system most stores are on.
func fileSystem(t *testing.T, size int) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, int64(size)<<20); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", "-m", "0", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s (needs root, a loop device and e2fsprogs)", args, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// ballast takes all free space of a file system and gives it back.
type ballast struct {
	t    *testing.T
	path string
}

// fill takes space until there is none, in the large and then page by page.
func (b ballast) fill() {
	f, err := os.OpenFile(b.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return // not even a directory entry
	}
	defer f.Close()
	for size := int64(64 << 20); size >= 4096; {
		st, err := f.Stat()
		if err != nil {
			b.t.Error(err)
			return
		}
		err = unix.Fallocate(int(f.Fd()), 0, st.Size(), size)
		if errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else if err != nil && !errors.Is(err, unix.EINTR) {
			b.t.Error(err)
			return
		}
	}
}

// keepFull fills again and again until ctx ends: what a removal or a log gives back goes at once.
func (b ballast) keepFull(ctx context.Context) {
	for ctx.Err() == nil {
		b.fill()
		time.Sleep(5 * time.Millisecond)
	}
}

func (b ballast) drain() {
	if err := os.Remove(b.path); err != nil {
		b.t.Fatal(err)
	}
}

// A disk that somebody else fills is an error of those who write, and of nobody else. Nothing is lost, and everything
// goes on once there is room.
func TestDiskFilledFromOutside(t *testing.T) {
	s := newSite(t)
	disk := fileSystem(t, 1024)
	s.store = filepath.Join(disk, "store")
	s.run("init", s.store)
	served, images := s.newName()
	s.run("import", s.store, served, images)
	s.sealed[served] = images
	want := tree(t, images)
	b := ballast{t, filepath.Join(disk, "ballast")}
	refused := map[bool]int{}

	for round := range *fullRounds {
		d, err := program.Serve(s.store, s.mnt)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wait := time.Duration(s.rand.Int64N(int64(400 * time.Millisecond)))
		wg.Go(func() {
			time.Sleep(wait)
			b.keepFull(ctx)
		})
		// Somebody writes through the mount and seals, somebody imports, somebody removes and collects, all at once.
		type outcome struct {
			name, images string
			err          error
		}
		outcomes := make(chan outcome, 64)
		end := time.Now().Add(2 * time.Second)
		work := []func(name, images string) error{
			func(name, images string) error {
				if err := copyTree(images, filepath.Join(s.mnt, ".checkpoints", name)); err != nil {
					return err
				}
				_, err := program.Run(t.Context(), "seal", s.store, name)
				return err
			},
			func(name, images string) error {
				_, err := program.Run(t.Context(), "import", s.store, name, images)
				return err
			},
		}
		for _, do := range work {
			names := make(chan [2]string, 32)
			for range cap(names) {
				name, images := s.newName()
				names <- [2]string{name, images}
			}
			wg.Go(func() {
				for time.Now().Before(end) && len(names) > 0 {
					n := <-names
					outcomes <- outcome{n[0], n[1], do(n[0], n[1])}
				}
			})
		}
		wg.Go(func() {
			for time.Now().Before(end) {
				_, _ = program.Run(t.Context(), "gc", "-y", s.store)
			}
		})
		wg.Go(func() {
			for time.Now().Before(end) {
				if diff := differences(tree(t, filepath.Join(s.mnt, ".checkpoints", served)), want); len(diff) > 0 {
					t.Errorf("round %d: served from a full disk, the checkpoint differs: %v", round, diff)
				}
			}
		})
		time.Sleep(time.Until(end))
		if _, err := program.States(t.Context(), s.store); err != nil {
			t.Errorf("round %d: the daemon does not list its store on a full disk: %v", round, err)
		}
		cancel()
		wg.Wait()
		close(outcomes)
		if err := syscall.Kill(d.PID(), 0); err != nil {
			t.Fatalf("round %d: the daemon is gone: %v", round, err)
		}
		killed := s.rand.IntN(2) == 0
		if killed { // while the disk is full: what it leaves must be whole
			if err := d.Kill(); err != nil {
				t.Fatal(err)
			}
			unmountStale(t, s.mnt)
			// Without a daemon a command may say that there is no room. It may not call the store damaged.
			if _, err := program.Run(t.Context(), "ls", s.store); cli.Code(err) == cli.Corrupt {
				t.Fatalf("round %d: a full disk is called damage: %v", round, err)
			}
		}
		b.drain()
		for o := range outcomes {
			s.settle(o.name, o.images, o.err == nil)
			if o.err != nil && !strings.Contains(o.err.Error(), "no space") {
				t.Errorf("round %d: a full disk said: %v", round, o.err)
			}
			refused[o.err != nil]++
		}
		if !killed {
			// The same daemon goes on.
			name, images := s.newName()
			s.run("import", s.store, name, images)
			s.sealed[name] = images
			// Those whose writers failed are incomplete, and the daemon says so.
			if err := d.Stop(); err != nil && !strings.Contains(err.Error(), "was not sealed") {
				t.Fatalf("round %d: %v", round, err)
			}
		}
		s.check()
		for name := range s.sealed {
			if name != served {
				s.run("rm", "-y", s.store, name)
				delete(s.sealed, name)
			}
		}
		s.run("gc", "-y", s.store)
	}
	t.Logf("%d checkpoints made, %d refused for want of space", refused[false], refused[true])
}
