package restore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

// wait lets a random moment come.
func wait(ms int) { time.Sleep(time.Duration(ms) * time.Millisecond) }

// The daemon is killed at a random moment of a restore or of what follows: the process goes on with memory that checks
// out.
func TestDaemonKilled(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", lazytarget.Options{MB: 32, Threads: 3, Seed: 4, Cold: 32})
	rnd := source(t)
	hit, tries := 0, 0
	for ; hit < *strikes && tries < 5**strikes; tries++ {
		// Slow enough for there to be something left at most moments: a daemon
		// that has brought everything is gone.
		after := rnd.IntN(300)
		done := make(chan int, 1)
		go func() {
			for late := time.Now().Add(limit); len(program.Role("daemon")) == 0 && time.Now().Before(late); wait(1) {
			}
			wait(after)
			n := 0
			for _, pid := range program.Role("daemon") {
				if syscall.Kill(pid, syscall.SIGKILL) == nil {
					n++
				}
			}
			done <- n
		}()
		_, err := x.restore(onDemand, "--prefetch-rate", "64MiB")
		if <-done > 0 {
			hit++
		}
		if err != nil {
			t.Fatalf("%v; the process is %s", err, state(x.pid))
		}
		must(t, x.Beats(20, limit))
		must(t, x.Stop(limit))
		if n := x.SIGBUS(); n != 0 {
			t.Errorf("%d pages could not be read", n)
		}
		must(t, quietly(b))
	}
	t.Logf("%d daemons were killed in %d restores", hit, tries)
	if hit < *strikes {
		t.Errorf("that is less than %d", *strikes)
	}
	// Another daemon clears up.
	x.mustRestore("--wait")
	must(t, x.Stop(limit))
	b.left.Killed()
}

// A daemon that is killed when the processes run already, before it has said so to the command: what the command tells
// of the restore is true, and its process goes on.
func TestDaemonKilledAtResume(t *testing.T) {
	for name, args := range map[string][]string{
		"not waited for": nil, "waited for": {"--wait"}, "as JSON": {"--json"}, "all waited for": {"--wait", "--json"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			x := b.dumped("one", lazytarget.Options{MB: 32, Threads: 1, Seed: 5, Quiet: true})
			dir := t.TempDir()
			script, at, on := filepath.Join(dir, "script"), filepath.Join(dir, "at"), filepath.Join(dir, "on")
			text := fmt.Sprintf("#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" = post-resume ] || exit 0\n"+
				": >%s\nwhile [ ! -e %s ]; do sleep .02; done\n", at, on)
			must(t, os.WriteFile(script, []byte(text), 0o700))
			killed := make(chan error, 1)
			go func() {
				err := poll(func() bool {
					_, err := os.Stat(at)
					return err == nil
				})
				for _, pid := range program.Role("daemon") {
					err = errors.Join(err, syscall.Kill(pid, syscall.SIGKILL))
				}
				killed <- errors.Join(err, os.WriteFile(on, nil, 0o600))
			}()
			out, err := x.restore(append(append([]string{onDemand, "--prefetch-rate", "16MiB"}, args...), "--",
				"--action-script", script)...)
			must(t, err)
			must(t, <-killed)
			if slices.Contains(args, "--json") {
				r := parse(t, out)
				st := r.Status
				if r.Timeline.Checkpoint != "one" || st.Checkpoint != "one" || st.Total < 16<<20 || !st.Adopted ||
					(st.Missing > 0) != (len(args) == 1) {
					t.Errorf("the restore is told as %s", out)
				}
			} else if !strings.Contains(out, "restored one as") ||
				!strings.Contains(out, "the daemon was killed meanwhile") ||
				strings.Contains(out, "follow") != (args == nil) || strings.Contains(out, "sweep 0B; zero 0B") {
				t.Errorf("the restore is told as %s", out)
			}
			must(t, x.Check(1, limit))
			x.Kill()
			must(t, quietly(b))
			b.left.Killed()
		})
	}
}

// A process that ends while its memory is brought is told of, with --wait and without. That it ends at once is no
// failure of the restore.
func TestEndsWhileFilled(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", quiet)
	script := filepath.Join(t.TempDir(), "script")
	text := fmt.Sprintf("#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" = post-resume ] || exit 0\nkill -9 %d\n", x.pid)
	must(t, os.WriteFile(script, []byte(text), 0o700))
	const ended = "has ended meanwhile"
	for _, args := range [][]string{{"--wait"}, nil, {"--wait"}, nil} {
		out, err := x.restore(append(args, onDemand, "--prefetch-rate", "4MiB", "--", "--action-script", script)...)
		must(t, err)
		if !strings.Contains(out, fmt.Sprintf("process %d %s", x.pid, ended)) {
			t.Errorf("%v: %s", args, out)
		}
		must(t, x.Ended(limit))
		must(t, b.left.Nothing())
	}
	if out := x.mustRestore("--wait"); strings.Contains(out, ended) {
		t.Error(out)
	}
	x.checks()
}

// state tells what a process is doing.
func state(pid int) string {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	at, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid))
	return fmt.Sprintf("%.60s, in %s", stat, at)
}

// quietly waits until nothing is left but what a killed daemon leaves: its socket's name, and the folder it was about
// to remove.
func quietly(b *bench) error {
	for end := time.Now().Add(time.Minute); len(program.Processes()) > 0; wait(10) {
		if time.Now().After(end) {
			// Where they are goes to the daemon's log.
			for _, pid := range program.Processes() {
				syscall.Kill(pid, syscall.SIGQUIT)
				wait(1000)
			}
			text, _ := os.ReadFile(filepath.Join(b.store, "daemon.log"))
			return fmt.Errorf("processes are left: %.60000s", text[max(0, len(text)-60000):])
		}
	}
	b.left.Killed()
	return b.left.Nothing()
}

// A chunk cannot be read: the process gets SIGBUS, or the restore fails; not one process reads a wrong byte.
func TestDamagedChunk(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", lazytarget.Options{MB: 24, Threads: 2, Seed: 5})
	rnd := source(t)
	var bus uint64
	failed := 0
	for range *strikes {
		heal := damage(t, b.store, rnd)
		x.Reset()
		x.Damaged()
		_, err := b.try("restore", b.store, "one")
		x.Restored(x.pid)
		// Partial: it runs, and some of what cannot be read was met before the command returned.
		if err != nil && cli.Code(err) != cli.Partial {
			failed++
			must(t, x.Ended(limit))
		} else {
			wait(rnd.IntN(100))
			must(t, x.StopDamaged(limit))
		}
		must(t, b.left.Nothing())
		bus += x.SIGBUS()
		heal()
		// What a damaged restore recorded is no profile.
	}
	t.Logf("%d restores, %d did not get to run, %d pages raised SIGBUS", *strikes, failed, bus)
	x.mustRestore("--wait")
	must(t, x.Stop(limit))
}

// damage flips bytes in the middle of the largest pack and gives a way to undo that.
func damage(t *testing.T, store string, rnd *rand.Rand) (heal func()) {
	t.Helper()
	packs, err := filepath.Glob(filepath.Join(store, "packs", "*.pack"))
	must(t, err)
	var name string
	var size int64
	for _, p := range packs {
		if st, err := os.Stat(p); err == nil && st.Size() > size {
			name, size = p, st.Size()
		}
	}
	if size == 0 {
		t.Fatal("the store has no packs")
	}
	flip := func(off int64) {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		must(t, err)
		defer f.Close()
		var c [1]byte
		_, err = f.ReadAt(c[:], off)
		must(t, err)
		c[0] ^= 0xff
		_, err = f.WriteAt(c[:], off)
		must(t, err)
	}
	off := rnd.Int64N(size)
	flip(off)
	return func() { flip(off) }
}
