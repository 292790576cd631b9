package lazy

import (
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/restore/uffd"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

// kills is how many restores have their server killed.
var kills = flag.Int("lazy.kills", 100, "restores with the server killed at a random moment")

// A guarded restore looks like any other, and leaves nothing behind.
func TestGuarded(t *testing.T) {
	c := dump(t, lazytarget.Options{MB: 64, Threads: 2, Seed: 3, Quiet: true})
	for range 3 {
		c.Reset()
		work := t.TempDir()
		g := c.guard(t, work, 0)
		must(t, c.restore(t, work))
		must(t, c.Check(2, time.Minute))
		must(t, <-g.end)
		must(t, g.gone(time.Minute))
		must(t, c.Check(2, time.Minute))
		if _, err := os.Lstat(filepath.Join(work, uffd.SocketName)); err == nil {
			t.Error("the socket is still there")
		}
		c.Kill()
	}
}

// Whoever provides is killed at a random moment of the restore or of what
// follows: the process goes on with memory that checks out.
func TestProviderKilled(t *testing.T) {
	c := dump(t, lazytarget.Options{MB: 32, Threads: 3, Seed: 4})
	rnd := rand.New(rand.NewPCG(1, uint64(os.Getpid())))
	took := 0
	for range *kills {
		c.Reset()
		work := t.TempDir()
		// Slow enough for there to be something left at most moments.
		g := c.guard(t, work, 64<<20)
		after := time.Duration(rnd.Int64N(int64(200 * time.Millisecond)))
		timer := time.AfterFunc(after, func() { g.cmd.Process.Signal(syscall.SIGKILL) })
		must(t, c.restore(t, work))
		must(t, c.Beats(20, time.Minute))
		must(t, c.Stop(time.Minute))
		timer.Stop()
		if err := <-g.end; err != nil {
			took++
		}
		must(t, g.gone(time.Minute))
		if n := c.SIGBUS(); n != 0 {
			t.Errorf("%d pages could not be read", n)
		}
	}
	t.Logf("%d of %d servers were killed before they were done", took, *kills)
}

// When nobody can take over the process is killed: it never runs on what it
// has.
func TestNobodySucceeds(t *testing.T) {
	c := dump(t, lazytarget.Options{MB: 64, Threads: 3, Seed: 13, Cold: 64})
	for range 3 {
		c.Reset()
		work := t.TempDir()
		g := c.guardAs(t, "doomed", work, 4<<20)
		must(t, c.restore(t, work))
		g.cmd.Process.Kill()
		<-g.end
		must(t, c.Ended(time.Minute))
		must(t, g.gone(time.Minute))
		if !strings.Contains(g.text(), "killed a task that lacks memory") {
			t.Errorf("the log does not tell: %s", g.text())
		}
	}
}

// Successors may be killed as well, as long as each brings something. A process that touches all of its memory has it
// soon: it is restored again until enough of them have been met.
func TestSuccessorsKilled(t *testing.T) {
	const enough, tries = 5, 60
	c := dump(t, lazytarget.Options{MB: 128, Threads: 2, Seed: 14, Cold: 128})
	killed := 0
	for range tries {
		if killed >= enough {
			break
		}
		work := t.TempDir()
		c.Reset()
		g := c.guard(t, work, 8<<20)
		must(t, c.restore(t, work))
		g.cmd.Process.Kill()
		for range 2 { // a third that has brought nothing would be the last
			must(t, poll(time.Minute,
				func() bool { return len(g.role("successor")) == 1 || len(g.role("guardian")) == 0 }))
			must(t, c.Beats(2, time.Minute))
			for _, pid := range g.role("successor") {
				syscall.Kill(pid, syscall.SIGKILL)
				killed++
				must(t, poll(time.Minute,
					func() bool { return syscall.Kill(pid, 0) != nil || len(g.role("successor")) == 0 }))
			}
		}
		must(t, c.Stop(time.Minute))
		must(t, g.gone(time.Minute))
		if n := c.SIGBUS(); n != 0 {
			t.Errorf("%d pages could not be read", n)
		}
	}
	t.Logf("%d successors killed; %s", killed, c)
	if killed < enough {
		t.Errorf("only %d successors were there to be killed", killed)
	}
}
