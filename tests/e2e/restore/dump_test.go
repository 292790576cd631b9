package restore

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

// A dump whose command is interrupted or killed loses nobody: the process goes on, or it has ended and its checkpoint
// can be restored.
func TestDumpKilled(t *testing.T) {
	b := newBench(t)
	rnd := source(t)
	x := b.start("target", lazytarget.Options{MB: 24, Threads: 1, Seed: 9, Quiet: true})
	kept := 0
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		for i := range *strikes {
			x.name = fmt.Sprintf("dump-%d-%d", int(sig), i)
			cmd := program.Command("dump", b.store, x.name, "-t", strconv.Itoa(x.pid))
			var said bytes.Buffer
			cmd.Stderr = &said
			must(t, cmd.Start())
			wait(rnd.IntN(250))
			cmd.Process.Signal(sig)
			if cmd.Wait(); cmd.ProcessState.ExitCode() > 0 &&
				!strings.HasPrefix(said.String(), "gpucr-fs: interrupted") {
				t.Errorf("an interrupted dump says %q", &said)
			}
			for end := time.Now().Add(limit); len(program.Processes()) > 0 && time.Now().Before(end); wait(10) {
			}
			b.left.Killed()
			must(t, b.left.Nothing())
			if b.has(x.name) {
				kept++
				// CRIU may still be about to end it.
				for end := time.Now().Add(limit); x.Alive() && time.Now().Before(end); wait(10) {
				}
				x.Kill()
				x.mustRestore("--wait")
			}
			must(t, x.Check(1, limit))
			must(t, b.left.Nothing())
		}
	}
	t.Logf("%d of %d dumps were complete", kept, 2**strikes)
}

// TestDumpWhileMemoryFollows: a dump waits for memory that a restore has not brought yet. criu would leave it out, and
// the process read zeros after the next restore.
func TestDumpWhileMemoryFollows(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", quiet)
	x.mustRestore(onDemand, "--prefetch-rate", "2MiB")
	b.run("dump", b.store, "two", "-t", strconv.Itoa(x.pid))
	must(t, x.Dumped())
	x.Reset()
	b.run("restore", "--wait", b.store, "two")
	x.Restored(x.pid)
	x.checks()
	must(t, b.left.Nothing())
}
