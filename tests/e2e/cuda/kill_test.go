package cuda

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/cuda/cudasim"
	"github.com/gpucr/gpucr-fs/tests/actors"
)

var (
	kills    = flag.Int("kills", 4, "how many dumps lose an actor at a random moment")
	killSeed = flag.Uint64("kills.seed", uint64(time.Now().UnixNano()), "of these moments")
)

// victims are killed anywhere. CRIU is not among them: killed while it runs code inside a process it takes that one
// along; TestDumpKilled kills it where it does not.
var victims = []string{actors.Command, actors.Holder, actors.Daemon}

// stallTime is how long a step takes in which an actor is killed.
const stallTime = 300 * time.Millisecond

// Whoever is killed at whatever step of a dump, the processes have their GPUs afterwards, and go on.
func TestActorsKilled(t *testing.T) {
	for _, step := range []cuda.Action{cuda.Lock, cuda.Checkpoint, cuda.Restore, cuda.Unlock} {
		for _, actor := range victims {
			t.Run(fmt.Sprintf("%s while %s", actor, step), func(t *testing.T) {
				r := start(t, cudasim.Options{Processes: 2})
				if _, err := r.app.Say(1, fmt.Sprintf("stall %s %d", step, stallTime.Milliseconds()),
					timeout); err != nil {
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
	t.Logf("-kills.seed=%d", *killSeed)
	r := start(t, cudasim.Options{Processes: 2, MiB: 80})
	for i, at := range actors.Moments(rand.New(rand.NewPCG(*killSeed, 0)), *kills, 600*time.Millisecond) {
		r.strike(victims[i%len(victims)], func(context.Context) { time.Sleep(at) })
	}
	r.ok("dump", r.store, "after", "-t", r.pid(), "--leave-running")
	r.verify()
}

// strike begins a dump, kills one of its actors when the moment has come, and checks that the application goes on.
func (r *rig) strike(actor string, moment func(context.Context)) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), timeout)
	defer cancel()
	var said strings.Builder
	name := fmt.Sprintf("struck-%d", time.Now().UnixNano())
	cmd := r.prepare(ctx, "gpucr-fs", "dump", r.store, name, "-t", r.pid(), "--leave-running")
	cmd.Stderr = &said
	must(r.t, cmd.Start())
	moment(ctx)
	work := r.work(cmd)
	victim, err := work.Kill(actor)
	must(r.t, err)
	err = cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	if ctx.Err() != nil {
		r.t.Fatalf("the dump does not end after %s was killed: %s", actor, &said)
	}
	r.t.Logf("%s (%d) killed: %v: %s", actor, victim, err, strings.TrimSpace(said.String()))
	// Who gives GPUs back, and a criu whose command is gone, may still be at it.
	for ctx.Err() == nil && work.Busy() {
		time.Sleep(5 * time.Millisecond)
	}
	r.states(cuda.Running)
	r.verify()
}
