package cuda

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/cuda/cudasim"
)

var kills = flag.Int("kills", 4, "how many dumps lose an actor at a random moment")

// actors of a dump. CRIU is not among them: killed while it runs code inside a process it takes that one along;
// TestDumpKilled kills it where it does not.
var actors = []string{"gpucr-fs", "gpucr-cuda", "daemon"}

// stallTime is how long a step takes in which an actor is killed.
const stallTime = 300 * time.Millisecond

// Whoever is killed at whatever step of a dump, the processes have their GPUs afterwards, and go on.
func TestActorsKilled(t *testing.T) {
	for _, step := range []cuda.Action{cuda.Lock, cuda.Checkpoint, cuda.Restore, cuda.Unlock} {
		for _, actor := range actors {
			t.Run(fmt.Sprintf("%s while %s", actor, step), func(t *testing.T) {
				r := start(t, cudasim.Options{Processes: 2})
				if _, err := r.app.Say(1, fmt.Sprintf("stall %s %d", step, stallTime.Milliseconds()),
					patience); err != nil {
					t.Fatal(err)
				}
				r.strike(actor, func(ctx context.Context) {
					pattern := filepath.Join(sim.Dir, fmt.Sprintf("stalls.%s.*", step))
					for ctx.Err() == nil {
						if names, _ := filepath.Glob(pattern); len(names) > 0 {
							return
						}
						time.Sleep(time.Millisecond)
					}
					t.Errorf("step %s does not come", step)
				})
				r.ok("dump", r.store, "after", "-t", r.pid(), "--leave-running")
				r.verify()
			})
		}
	}
}

func TestActorsKilledAnywhere(t *testing.T) {
	r := start(t, cudasim.Options{Processes: 2, MiB: 32})
	for i := range *kills {
		r.strike(actors[i%len(actors)],
			func(context.Context) { time.Sleep(time.Duration(rand.IntN(600)) * time.Millisecond) })
	}
	r.ok("dump", r.store, "after", "-t", r.pid(), "--leave-running")
	r.verify()
}

// strike begins a dump, kills one of its actors when the moment has come, and checks that the application goes on.
func (r *rig) strike(actor string, moment func(context.Context)) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	var said strings.Builder
	name := fmt.Sprintf("struck-%d", time.Now().UnixNano())
	cmd := r.prepare(ctx, "gpucr-fs", "dump", r.store, name, "-t", r.pid(), "--leave-running")
	cmd.Stderr = &said
	must(r.t, cmd.Start())
	moment(ctx)
	victim := r.actor(actor, cmd)
	if victim > 0 {
		syscall.Kill(victim, syscall.SIGKILL)
	}
	err := cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	if ctx.Err() != nil {
		r.t.Fatalf("the dump does not end after %s was killed: %s", actor, &said)
	}
	r.t.Logf("%s (%d) killed: %v: %s", actor, victim, err, strings.TrimSpace(said.String()))
	// Who gives GPUs back, and a criu whose command is gone, may still be at it.
	for ctx.Err() == nil && r.busy() {
		time.Sleep(5 * time.Millisecond)
	}
	r.states(cuda.Running)
	r.verify()
}

// actor gives the pid of one that takes part in a dump, 0 when it is not there.
func (r *rig) actor(name string, dump *exec.Cmd) int {
	switch name {
	case "gpucr-fs":
		return dump.Process.Pid
	case "daemon":
		pid, err := daemonOf(r.store)
		if err != nil {
			return 0
		}
		return pid
	}
	pids, err := cuda.Tree(dump.Process.Pid)
	if err != nil {
		return 0
	}
	for _, pid := range pids {
		if isHolder(pid) {
			return pid
		}
	}
	return 0
}

func isHolder(pid int) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && exe == filepath.Join(dir, "gpucr-cuda")
}

// busy tells whether a gpucr-cuda of this test, or a criu that dumps, is still there.
func (r *rig) busy() bool {
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		var pid int
		fmt.Sscan(filepath.Base(name), &pid)
		if isHolder(pid) || dumps(pid) && hasStore(pid, r.store) {
			return true
		}
	}
	return false
}

// hasStore tells whether a process works for a store: its descriptors lead there.
func hasStore(pid int, store string) bool {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, filepath.Dir(store)) {
			return true
		}
	}
	return false
}
