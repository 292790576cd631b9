package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index"
)

func TestMountRefusesBadPlaces(t *testing.T) {
	s := newStore(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	write(t, file, nil)
	inStore := filepath.Join(s.Dir(), "mnt")
	must(t, os.Mkdir(inStore, 0o755))
	live := mounted(t, s, Options{})
	link := filepath.Join(dir, "link")
	must(t, os.Symlink(live.Dir(), link))
	for _, c := range []struct {
		dir  string
		o    Options
		want index.Class
	}{
		{filepath.Join(dir, "absent"), Options{}, index.NotFound},
		{filepath.Join(dir, "absent", "too"), Options{}, index.NotFound},
		{file, Options{}, index.Invalid},
		{inStore, Options{}, index.Invalid},
		{filepath.Dir(s.Dir()), Options{}, index.Invalid},
		{live.Dir(), Options{}, index.InUse},
		{link, Options{}, index.InUse},
		{dir, Options{Checkpoint: "absent"}, index.NotFound},
		{dir, Options{New: ".bad"}, index.Invalid},
		{dir, Options{New: "a", Checkpoint: "b"}, index.Invalid},
	} {
		srv, err := Mount(context.Background(), s, c.dir, c.o)
		if index.ClassOf(err) != c.want {
			t.Errorf("mount at %s with %+v: %v, want class %v", c.dir, c.o, err, c.want)
		}
		if err == nil {
			srv.Close()
		}
	}
}

func TestUnmountWaitsForNobodyWhoStays(t *testing.T) {
	s := newStore(t)
	sealed(t, s, "A", map[string][]byte{"x": noise(1, 32<<20)})
	srv := mounted(t, s, Options{})
	f, err := os.Open(filepath.Join(srv.Dir(), "x"))
	must(t, err)
	defer f.Close()
	if err := srv.Unmount(context.Background()); index.ClassOf(err) != index.InUse || index.HintOf(err) == "" {
		t.Errorf("unmounting in use: %v", err)
	}
	if _, err := io.ReadFull(f, make([]byte, 100)); err != nil {
		t.Errorf("a refused unmount breaks reading: %v", err)
	}
	must(t, srv.Close())
	_, err = f.ReadAt(make([]byte, 100), 30<<20)
	wantErrno(t, err, syscall.ENOTCONN, "read after the mount was forced away")
	if n := srv.Stats().OpenHandles; n != 1 {
		t.Errorf("%d open handles are reported, want the one that its user left open", n)
	}
	if err := s.Close(); err != nil {
		t.Errorf("the store has something open: %v", err)
	}
}

// TestUnmountWithCopyElsewhere unmounts while a process in another mount namespace, as a container has, keeps a copy of
// the mount.
func TestUnmountWithCopyElsewhere(t *testing.T) {
	srv := mounted(t, newStore(t), Options{})
	keeper := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo there; exec cat")
	in, err := keeper.StdinPipe()
	must(t, err)
	out, err := keeper.StdoutPipe()
	must(t, err)
	must(t, keeper.Start())
	defer func() {
		in.Close()
		must(t, keeper.Wait())
	}()
	_, err = out.Read(make([]byte, 6))
	must(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must(t, srv.Unmount(ctx))
}

func TestUmountFromOutsideEndsTheServer(t *testing.T) {
	s := newStore(t)
	srv := mounted(t, s, Options{New: "A"})
	write(t, filepath.Join(srv.Dir(), "inventory.img"), []byte("x"))
	must(t, unix.Unmount(srv.Dir(), 0))
	done := make(chan error)
	go func() { done <- srv.Wait() }()
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(time.Minute):
		t.Fatal("Wait does not return after umount(2)")
	}
	if _, err := s.Checkpoint("A"); err != nil {
		t.Errorf("the dump is not sealed: %v", err)
	}
	must(t, srv.Unmount(context.Background()))
}

// CRIU ends the processes once it has written its inventory: a dump is given up before, and then the write fails, or
// not at all.
func TestSettleBesideTheInventory(t *testing.T) {
	s := newStore(t)
	srv := mounted(t, s, Options{})
	given := 0
	for i := range 200 {
		name := fmt.Sprintf("dump-%d", i)
		dir := filepath.Join(srv.Dir(), topName, name)
		must(t, os.Mkdir(dir, 0o755))
		write(t, filepath.Join(dir, "pages-1.img"), []byte("pages"))
		fd, err := unix.Open(
			filepath.Join(dir, "inventory.img"), unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC|unix.O_CLOEXEC, 0o644,
		)
		must(t, err)
		wrote := make(chan error)
		go func() {
			time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond)
			_, err := unix.Write(fd, []byte("inventory"))
			wrote <- err
		}()
		time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		serr := srv.Settle(ctx, name)
		cancel()
		werr := <-wrote
		unix.Close(fd)
		_, kept := srv.Draft(name)
		if (werr == nil) != kept || (serr == nil) == kept {
			t.Fatalf("%s: written: %v, settled: %v, kept: %v", name, werr, serr, kept)
		}
		if !kept {
			given++
			continue
		}
		must(t, srv.Discard(name))
	}
	if given == 0 || given == 200 {
		t.Errorf("%d of 200 were given up", given)
	}
}

// TestMountsComeAndGo mounts and unmounts in several places at once, as restores do, and looks whether a program
// started by then would keep the connection.
func TestMountsComeAndGo(t *testing.T) {
	s := newStore(t)
	var g errgroup.Group
	for range 6 {
		dir := t.TempDir()
		g.Go(func() error {
			for range 40 {
				srv, err := Mount(context.Background(), s, dir, Options{})
				if err != nil {
					return err
				}
				err = inherited()
				if err := errors.Join(err, srv.Close()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	must(t, g.Wait())
}

// inherited is an error where a descriptor of the FUSE device is open that a started program would have too.
func inherited() error {
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		return err
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err != nil || to != "/dev/fuse" {
			continue
		}
		info, err := os.ReadFile("/proc/self/fdinfo/" + filepath.Base(l))
		if err != nil {
			continue // closed by now
		}
		var flags uint64
		for line := range strings.Lines(string(info)) {
			if v, ok := strings.CutPrefix(line, "flags:"); ok {
				if flags, err = strconv.ParseUint(strings.TrimSpace(v), 8, 64); err != nil {
					return err
				}
			}
		}
		if to, err := os.Readlink(l); err == nil && to == "/dev/fuse" && flags&unix.O_CLOEXEC == 0 {
			return fmt.Errorf("%s is open for programs that are started: flags %o", l, flags)
		}
	}
	return nil
}

func TestSealThroughServer(t *testing.T) {
	s := newStore(t)
	srv := mounted(t, s, Options{})
	must(t, os.Mkdir(filepath.Join(srv.Dir(), topName, "A"), 0o755))
	if d, ok := srv.Draft("A"); !ok || d.Name() != "A" {
		t.Errorf("the draft is not found: %v", ok)
	}
	if _, err := srv.Seal(context.Background(), "B"); index.ClassOf(err) != index.NotFound {
		t.Errorf("sealing what is not there: %v", err)
	}
	for range 2 {
		info, err := srv.Seal(context.Background(), "A")
		if err != nil || info.Name != "A" || info.ID == "" || info.State != index.Sealed {
			t.Errorf("sealed as %+v, %v", info, err)
		}
	}
	if _, ok := srv.Draft("A"); ok {
		t.Error("a sealed checkpoint is still a draft")
	}
}

func TestOnAccessIsToldOfReads(t *testing.T) {
	s := newStore(t)
	sealed(t, s, "A", map[string][]byte{"x": noise(1, 3<<20), "empty": nil})
	var mu sync.Mutex
	seen := make([]bool, 3<<20>>12)
	srv := mounted(t, s, Options{OnAccess: func(cp, p string, off, n int64) {
		mu.Lock()
		defer mu.Unlock()
		if cp != "A" || p != "x" || off%4096 != 0 {
			t.Errorf("told of %s %s at %d", cp, p, off)
			return
		}
		for at := off; at < off+n; at += 4096 {
			seen[at>>12] = true
		}
	}})
	wantFile(t, filepath.Join(srv.Dir(), "x"), noise(1, 3<<20))
	wantFile(t, filepath.Join(srv.Dir(), "empty"), nil)
	mu.Lock()
	defer mu.Unlock()
	for i, ok := range seen {
		if !ok {
			t.Fatalf("page %d was read unseen", i)
		}
	}
}

func TestOtherUsers(t *testing.T) {
	s := newStore(t)
	d, err := s.Create(context.Background(), "A", index.CreateOptions{})
	must(t, err)
	for name, perm := range map[string]os.FileMode{"inventory.img": 0o644, "open": 0o644, "closed": 0o600} {
		f, err := d.Create(name, perm)
		must(t, err)
		_, err = f.WriteAt([]byte("x"), 0)
		must(t, err)
		must(t, f.Close())
	}
	_, err = d.Seal(context.Background())
	must(t, err)
	cat := func(p string) string {
		cmd := exec.Command("cat", p)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	for _, c := range []struct {
		allow        bool
		open, closed string
	}{{false, "denied", "denied"}, {true, "x", "denied"}} {
		base, err := os.MkdirTemp("", "others")
		must(t, err)
		defer os.RemoveAll(base)
		must(t, os.Chmod(base, 0o755))
		dir := filepath.Join(base, "mnt")
		must(t, os.Mkdir(dir, 0o755))
		srv, err := Mount(context.Background(), s, dir, Options{AllowOther: c.allow})
		must(t, err)
		for name, want := range map[string]string{"open": c.open, "closed": c.closed} {
			if got := cat(filepath.Join(dir, name)); !strings.Contains(got, want) {
				t.Errorf("allow %v: another user reads %q from %s, want %q", c.allow, got, name, want)
			}
		}
		must(t, srv.Close())
	}
}

func TestScratchIsBoundedThroughTheMount(t *testing.T) {
	s := newStore(t)
	srv := mounted(t, s, Options{ScratchBytes: 1 << 20})
	p := filepath.Join(srv.Dir(), "notes")
	wantErrno(t, os.WriteFile(p, make([]byte, 2<<20), 0o644), syscall.ENOSPC, "writing more scratch than allowed")
	if got := srv.Stats().ScratchBytes; got == 0 || got > 1<<20 {
		t.Errorf("%d bytes of scratch are held", got)
	}
	must(t, os.Remove(p))
	write(t, p, make([]byte, 500_000))
	must(t, os.Remove(p))
	if err := os.WriteFile(filepath.Join(srv.Dir(), "x.log"), []byte("x"), 0o644); err != nil {
		t.Errorf("scratch stays full: %v", err)
	}
}

// TestDraftsUnderConcurrency has several writers make, rename, rewrite, remove and read files of one draft each while
// others are sealed and removed, and compares what was sealed with what each writer knows it left.
func TestDraftsUnderConcurrency(t *testing.T) {
	s := newStore(t)
	srv := mounted(t, s, Options{Logger: quiet()})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			for round := range 3 {
				name := fmt.Sprintf("w%d-%d", w, round)
				if err := oneDraft(srv, filepath.Join(srv.Dir(), topName, name), name, r); err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				if round > 0 {
					if err := s.Remove(context.Background(), []string{fmt.Sprintf("w%d-%d", w, round-1)}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	stop := make(chan struct{})
	var looker sync.WaitGroup
	looker.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			filepath.WalkDir(srv.Dir(), func(p string, _ os.DirEntry, err error) error {
				if err == nil {
					os.Lstat(p)
				}
				return nil
			})
		}
	})
	wg.Wait()
	close(stop)
	looker.Wait()
	if n := srv.Stats().OpenHandles; n != 0 {
		t.Logf("%d handles are on their way out", n)
	}
}

func oneDraft(srv *Server, dir, name string, r *rand.Rand) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	have := map[string][]byte{}
	pick := func() string { return fmt.Sprintf("f%d", r.IntN(8)) }
	for i := range 60 {
		f := pick()
		p := filepath.Join(dir, f)
		switch r.IntN(5) {
		case 0, 1:
			data := noise(uint64(i), r.IntN(300_000))
			if err := os.WriteFile(p, data, 0o644); err != nil {
				return err
			}
			have[f] = data
		case 2:
			to := pick()
			err := os.Rename(p, filepath.Join(dir, to))
			if _, ok := have[f]; !ok {
				if !errors.Is(err, syscall.ENOENT) {
					return fmt.Errorf("rename of nothing: %v", err)
				}
				continue
			}
			if err != nil {
				return err
			}
			data := have[f]
			delete(have, f)
			have[to] = data
		case 3:
			err := os.Remove(p)
			if _, ok := have[f]; ok != (err == nil) {
				return fmt.Errorf("remove: %v", err)
			}
			delete(have, f)
		case 4:
			if data, ok := have[f]; ok && len(data) > 0 {
				fd, err := os.OpenFile(p, os.O_RDWR, 0)
				if err != nil {
					return err
				}
				off := r.IntN(len(data))
				patch := noise(uint64(i)+7, r.IntN(len(data)-off+1))
				_, err = fd.WriteAt(patch, int64(off))
				copy(data[off:], patch)
				if err := errors.Join(err, fd.Close()); err != nil {
					return err
				}
			}
		}
	}
	if _, err := srv.Seal(context.Background(), name); err != nil {
		return err
	}
	l, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(l) != len(have) {
		return fmt.Errorf("%d files were sealed, want %d", len(l), len(have))
	}
	for f, want := range have {
		got, err := os.ReadFile(filepath.Join(dir, f))
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%s differs after sealing", f)
		}
	}
	return nil
}

// TestAbortMeetsNobodyElse: a mount ends while its connection is about to be aborted, and others get its number. They
// are not aborted.
func TestAbortMeetsNobodyElse(t *testing.T) {
	s := newStore(t)
	for range 10 {
		first, err := Mount(context.Background(), s, t.TempDir(), Options{})
		must(t, err)
		dev, err := first.device()
		must(t, err)
		c, err := connectionOf(dev)
		must(t, err)
		defer c.close()
		must(t, first.Close())
		met := false
		var others []*Server
		for range 5 {
			others = append(others, mounted(t, s, Options{}))
			now, err := others[len(others)-1].device()
			must(t, err)
			met = met || now == dev
		}
		must(t, c.abort())
		for _, o := range others {
			if _, err := os.Stat(o.Dir()); err != nil {
				t.Fatal(err)
			}
		}
		if met {
			return
		}
	}
	t.Fatal("no mount got the number of one that had ended")
}
