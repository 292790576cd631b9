package lazy

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/uffd"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

// damages is how many restores have part of their pages unreadable.
var damages = flag.Int("lazy.damages", 50, "restores with an unreadable part")

// damaged is a file that cannot be read from off to end.
type damaged struct {
	prefetch.File
	off, end int64
	hits     *atomic.Int64
}

var errDamaged = errors.New("checksum does not match")

func (d *damaged) ReadAt(p []byte, off int64) (int, error) {
	if off < d.end && off+int64(len(p)) > d.off {
		d.hits.Add(1)
		return 0, errDamaged
	}
	return d.File.ReadAt(p, off)
}

// Pages that cannot be read raise SIGBUS; not one reads as anything else.
func TestUnreadable(t *testing.T) {
	c := dump(t, lazytarget.Options{MB: 32, Threads: 3, Seed: 5})
	rnd := rand.New(rand.NewPCG(2, uint64(os.Getpid())))
	var bus uint64
	var poisoned int64
	failed := 0
	for range *damages {
		c.Reset()
		work := t.TempDir()
		c.Damaged()
		var hits atomic.Int64
		s := c.serve(t, work, serveOptions{rate: 64 << 20, quiet: true, wrap: func(f prefetch.File) prefetch.File {
			off := rnd.Int64N(max(1, f.Size()))
			return &damaged{f, off, off + 1 + rnd.Int64N(1<<20), &hits}
		}})
		if c.restore(t, work) != nil {
			// The damage is where the kernel or CRIU itself had to look
			// before the process ran, or one thread of it ran into the damage
			// and ended them all before CRIU had let go of the others: then
			// the server had done its part.
			failed++
			must(t, c.Ended(time.Minute))
			err := s.wait(time.Minute)
			gaveUp := errors.Is(err, uffd.ErrRestore) && hits.Load() > 0
			ended := err == nil && s.Report().PoisonedBytes > 0
			if !gaveUp && !ended {
				t.Errorf("the restore failed, the server says %v, %d bytes poisoned", err, s.Report().PoisonedBytes)
			}
			continue
		}
		time.Sleep(time.Duration(rnd.IntN(200)) * time.Millisecond)
		must(t, c.StopDamaged(time.Minute))
		must(t, s.wait(time.Minute))
		r := s.Report()
		if r.PoisonedBytes > 0 && len(r.Poisoned) == 0 || len(r.Poisoned) > 0 &&
			r.Poisoned[0].Reason != errDamaged.Error() {
			t.Errorf("report does not tell what is poisoned: %+v", r)
		}
		if c.SIGBUS() > 0 && r.PoisonedBytes == 0 {
			t.Errorf("%d pages raised SIGBUS and none was reported", c.SIGBUS())
		}
		bus += c.SIGBUS()
		poisoned += r.PoisonedBytes
	}
	t.Logf("%d restores, %d did not get to run, %d bytes poisoned, %d pages raised SIGBUS", *damages, failed, poisoned,
		bus)
	if bus == 0 {
		t.Error("no page was ever unreadable")
	}
}

// A process that is killed while it is filled ends its server.
func TestTargetKilled(t *testing.T) {
	c := dump(t, lazytarget.Options{MB: 64, Threads: 2, Seed: 6})
	for range 5 {
		c.Reset()
		work := t.TempDir()
		s := c.serve(t, work, serveOptions{rate: 4 << 20})
		must(t, c.restore(t, work))
		must(t, c.Beats(5, time.Minute))
		c.Kill()
		must(t, s.wait(time.Minute))
	}
}

// When criu is killed in the middle of a restore nothing is left of it.
func TestRestoreFails(t *testing.T) {
	c := dump(t, lazytarget.Options{MB: 32, Threads: 2, Seed: 7})
	failed := 0
	for i := range 12 {
		c.Reset()
		work := t.TempDir()
		g := c.guard(t, work, 0)
		cmd := exec.Command(criuProgram(t), "restore", "-W", work, "-D", c.dir, "--lazy-pages", "-o", "restore.log")
		must(t, cmd.Start())
		if i < 3 {
			time.Sleep(time.Duration(i*10) * time.Millisecond)
		} else {
			// From when it has connected, which removes the socket.
			must(t, poll(time.Minute, func() bool {
				_, err := os.Lstat(filepath.Join(work, uffd.SocketName))
				return err != nil
			}))
			time.Sleep(time.Duration(i-3) * 2 * time.Millisecond)
		}
		cmd.Process.Kill()
		cmd.Wait()
		select {
		case err := <-g.end:
			// Killed before it was finished; or after, and the process runs.
			if err != nil {
				failed++
				must(t, c.Ended(time.Minute))
			}
		case <-time.After(time.Second):
			// It was killed before it connected: nobody has come yet.
			g.cmd.Process.Signal(syscall.SIGTERM)
			<-g.end
		}
		must(t, g.gone(time.Minute))
		c.Kill()
		if _, err := os.Lstat(filepath.Join(work, uffd.SocketName)); err == nil {
			t.Errorf("restore %d: the socket is still there", i)
		}
	}
	if failed == 0 {
		t.Error("criu was never killed in the middle")
	}
}

func poll(timeout time.Duration, ok func() bool) error {
	for end := time.Now().Add(timeout); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("it does not happen")
		}
	}
	return nil
}

// When the guardian itself is killed the process is ended too: it never sees
// pages that are missing.
func TestGuardianKilled(t *testing.T) {
	c := dump(t, lazytarget.Options{MB: 64, Threads: 3, Seed: 8, Cold: 64})
	rnd := rand.New(rand.NewPCG(3, uint64(os.Getpid())))
	for range 15 {
		c.Reset()
		work := t.TempDir()
		g := c.guard(t, work, 4<<20)
		must(t, c.restore(t, work))
		time.Sleep(time.Duration(rnd.IntN(150)) * time.Millisecond)
		for _, pid := range g.role("guardian") {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		if err := <-g.end; err == nil {
			t.Fatal("all memory was there already")
		}
		must(t, c.Ended(time.Minute))
	}
}

// A process that has all its memory does not see one end that lacks some: when
// the guardian is killed they all are.
func TestGuardianKilledOfSome(t *testing.T) {
	must(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	dir := t.TempDir()
	child, err := lazytarget.Watch(dir)
	must(t, err)
	t.Cleanup(func() { child.Close() })
	c := &checkpoint{Target: child, dir: filepath.Join(dir, "images")}
	must(t, os.Mkdir(c.dir, 0o755))
	large := lazytarget.Options{MB: 64, Threads: 1, Seed: 15, Quiet: true}
	cmd := exec.Command("sh",
		append([]string{"-c", `"$@" & wait $!; echo $? > seen`, "sh", targetBin}, large.Args(dir)...)...)
	cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Setsid: true}
	must(t, cmd.Start())
	go cmd.Wait()
	c.pid = cmd.Process.Pid
	child.Restored(c.pid)
	t.Cleanup(child.Kill)
	must(t, child.Ready(time.Minute))
	kids, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", c.pid))
	must(t, err)
	kid, err := strconv.Atoi(strings.TrimSpace(string(kids)))
	must(t, err)
	// In a session of its own the child is not reaped with the shell.
	free := func() bool {
		syscall.Wait4(kid, nil, syscall.WNOHANG, nil)
		return syscall.Kill(kid, 0) == syscall.ESRCH
	}
	must(t, criu(t, "dump", "-D", c.dir, "-t", strconv.Itoa(c.pid)))
	must(t, child.Dumped())
	for range 3 {
		must(t, poll(time.Minute, free))
		c.Reset()
		work := t.TempDir()
		g := c.guard(t, work, 4<<20)
		must(t, c.restore(t, work))
		time.Sleep(300 * time.Millisecond) // the shell is small
		for _, pid := range g.role("guardian") {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		if err := <-g.end; err == nil {
			t.Fatal("all memory was there already")
		}
		must(t, c.Ended(time.Minute))
		must(t, poll(time.Minute, free))
		if seen, err := os.ReadFile(filepath.Join(dir, "seen")); err == nil {
			t.Fatalf("the shell saw its child end: %s", seen)
		}
	}
}

// Many restores at once, from one process.
func TestManyAtOnce(t *testing.T) {
	const n = 20
	var cs []*checkpoint
	for i := range n {
		cs = append(cs, dump(t, lazytarget.Options{MB: 12, Threads: 1 + i%3, Seed: uint64(100 + i), Quiet: i%2 == 0}))
	}
	var all sync.WaitGroup
	for _, c := range cs {
		c.Reset()
		work := t.TempDir()
		s := c.serve(t, work, serveOptions{})
		all.Go(func() {
			if err := c.restore(t, work); err != nil {
				t.Error(err)
				return
			}
			if err := s.wait(time.Minute); err != nil {
				t.Error(err)
			}
			if err := c.Stop(time.Minute); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// Ending a server that nobody has connected to leaves nothing.
func TestNobodyCame(t *testing.T) {
	c := dump(t, lazytarget.Options{MB: 8, Threads: 1, Seed: 9, Quiet: true})
	work := t.TempDir()
	s := c.serve(t, work, serveOptions{})
	s.stop()
	if err := s.wait(time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	must(t, s.Server.Close())
	if _, err := os.Lstat(filepath.Join(work, uffd.SocketName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket: %v", err)
	}
}
