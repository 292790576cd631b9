package cuda

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/cuda/cudasim"
	"github.com/gpucr/gpucr-fs/cuda/freeze"
)

// A process one of whose threads asks the driver, whatever state it is in, lives through dumps and a restore.
func TestAsks(t *testing.T) {
	r := start(t, cudasim.Options{Processes: 2, Asks: true})
	for i := range 3 {
		r.ok("dump", r.store, fmt.Sprint("goes-on-", i), "-t", r.pid(), "--leave-running")
		r.verify()
		r.states(cuda.Running)
	}
	r.ok("dump", r.store, "last", "-t", r.pid())
	must(t, r.app.Gone(timeout))
	for range 2 {
		r.restored("last")
		r.verify()
		if freeze.Stopped(r.app.PID) {
			t.Error("the restored process is stopped")
		}
		r.ok("dump", r.store, "again", "-t", r.pid(), "--leave-running")
		r.ok("rm", r.store, "again", "-y")
		r.verify()
		must(t, r.app.Kill())
	}
}

// Restored processes run before they have their GPUs.
func TestRunsBeforeItsGPU(t *testing.T) {
	const stall = 4 * time.Second
	r := start(t, cudasim.Options{Asks: true})
	if _, err := r.app.Say(0, fmt.Sprintf("stall restore %d", stall.Milliseconds()), timeout); err != nil {
		t.Fatal(err)
	}
	r.ok("dump", r.store, "last", "-t", r.pid())
	r.gone()
	begun := time.Now()
	answered := make(chan time.Time, 1)
	go func() {
		_, _ = r.app.Say(0, "what?", timeout) // needs no GPU
		answered <- time.Now()
	}()
	r.restored("last")
	had := time.Now()
	if took := had.Sub(begun); took < stall {
		t.Errorf("the restore took %v: it did not wait for the driver", took)
	}
	if before := had.Sub(<-answered); before < stall/2 {
		t.Errorf("the process answered only %v before it had its GPU", before)
	}
	r.verify()
}

// A dump that fails when all GPUs are away gives them back, and nobody runs before.
func TestAsksWhereDumpFails(t *testing.T) {
	r := start(t, cudasim.Options{Processes: 2, Asks: true})
	script := filepath.Join(t.TempDir(), "script")
	must(t, os.WriteFile(script, []byte("#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" != post-dump ]\n"), 0o700))
	for _, flag := range []string{"--leave-running", "--keep-inherited"} {
		r.fails([]string{"dump", r.store, "refused", "-t", r.pid(), flag, "--", "--action-script", script}, "criu")
	}
	r.verify()
	r.states(cuda.Running)
}

// Whoever is killed while the GPUs are away, the processes go on.
func TestAsksActorsKilled(t *testing.T) {
	for _, step := range []cuda.Action{cuda.Checkpoint, cuda.Restore} {
		for _, actor := range []string{"gpucr-fs", "gpucr-cuda"} {
			t.Run(fmt.Sprintf("%s while %s", actor, step), func(t *testing.T) {
				r := start(t, cudasim.Options{Processes: 2, Asks: true})
				if _, err := r.app.Say(1, fmt.Sprintf("stall %s %d", step, stallTime.Milliseconds()),
					timeout); err != nil {
					t.Fatal(err)
				}
				r.strike(actor, func(ctx context.Context) {
					for ctx.Err() == nil {
						if names, _ := filepath.Glob(filepath.Join(sim.Dir, fmt.Sprintf("stalls.%s.*", step))); len(
							names,
						) > 0 {
							return
						}
						time.Sleep(time.Millisecond)
					}
				})
				r.verify()
				if err := syscall.Kill(r.app.PID, 0); err != nil || freeze.Stopped(r.app.PID) {
					t.Errorf("the process is stopped, or gone: %v", err)
				}
			})
		}
	}
}
