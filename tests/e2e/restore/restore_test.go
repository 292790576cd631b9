package restore

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/restores"
	"github.com/gpucr/gpucr-fs/restore"
	"github.com/gpucr/gpucr-fs/restore/procfs"
	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

var quiet = lazytarget.Options{MB: 48, Threads: 1, Seed: 1, Quiet: true}

// result is what restore --json prints.
type result struct {
	Timeline restore.Timeline
	Status   restores.Status
}

func parse(t testing.TB, out string) (r result) {
	t.Helper()
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return r
}

// A first restore records a profile, later ones replay it; resume comes before resident, and the timeline tells all.
func TestRestore(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", quiet)
	r := parse(t, x.mustRestore("--json"))
	if r.Timeline.PID != x.pid {
		t.Errorf("the process is %d, restore says %d", x.pid, r.Timeline.PID)
	}
	x.checks()
	must(t, b.left.Nothing()) // the daemon goes with the last restore

	if out := b.run("profile", "show", b.store, "one"); !strings.Contains(out, "pages-1.img") ||
		!strings.Contains(out, "inventory.img") {
		t.Errorf("the profile lacks faults or reads:\n%s", out)
	}
	file := filepath.Join(t.TempDir(), "timeline")
	r = parse(t, x.mustRestore("--json", "--wait", "--timeline", file))
	for _, name := range []string{"prepared", "pre-restore", "resume", "hot set done", "resident"} {
		if _, ok := r.Timeline.At(name); !ok {
			t.Errorf("the timeline lacks %q: %+v", name, r.Timeline.Marks)
		}
	}
	if !r.Timeline.Profile || r.Timeline.Bytes.Hot == 0 || r.Timeline.Bytes.Images == 0 {
		t.Errorf("no profile was replayed: %+v", r.Timeline)
	}
	if r.Status.Missing != 0 || r.Status.Total < 32<<20 {
		t.Errorf("not resident: %+v", r.Status)
	}
	for _, suffix := range []string{".json", ".svg"} {
		if st, err := os.Stat(file + suffix); err != nil || st.Size() < 200 {
			t.Errorf("timeline%s: %v", suffix, err)
		}
	}
	x.checks()
	b.run("profile", "clear", b.store, "one")
	if _, err := b.try("profile", "show", b.store, "one"); cli.Code(err) != cli.Failed {
		t.Errorf("a cleared profile: %v", err)
	}
}

// The profile of a checkpoint serves a descendant.
func TestProfileCopy(t *testing.T) {
	b := newBench(t)
	x := b.dumped("parent", quiet)
	x.mustRestore("--wait")
	must(t, x.Check(1, limit))
	b.run("dump", b.store, "child", "-t", strconv.Itoa(x.pid))
	must(t, x.Dumped())
	b.run("profile", "copy", b.store, "parent", "child")
	b.run("warmup", b.store, "child", "--hot")
	b.run("warmup", b.store, "child")
	x.name = "child"
	if r := parse(t, x.mustRestore("--json", "--wait")); !r.Timeline.Profile {
		t.Errorf("the copied profile is not replayed: %+v", r.Timeline)
	}
	x.checks()
	b.run("profile", "record", b.store, "child")
	if r := parse(t, x.mustRestore("--json", "--wait")); r.Timeline.Profile {
		t.Error("a profile that is to be recorded anew was replayed")
	}
	x.checks()
	if r := parse(t, x.mustRestore("--json", "--wait")); !r.Timeline.Profile {
		t.Error("the new profile was not kept")
	}
	x.checks()
}

// A restore through a mount that is there joins its daemon, and leaves the mount alone.
func TestRestoreBesideMount(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", quiet)
	mnt := t.TempDir()
	b.run("mount", b.store, mnt)
	t.Cleanup(func() { b.try("umount", "--force", mnt) })
	x.mustRestore("--wait", "--", "-v4", "-o", filepath.Join(t.TempDir(), "restore.log"))
	x.checks()
	if _, err := os.Stat(filepath.Join(mnt, "inventory.img")); err != nil {
		t.Error(err)
	}
	// The next restore finds a guardian's process, and does without it when it was killed meanwhile.
	for range 2 {
		var spare, before []int
		for end := time.Now().Add(limit); (len(spare) != 1 || !slices.Equal(spare, before)) &&
			time.Now().Before(end); wait(100) {
			before, spare = spare, program.Role("guardian")
		}
		if len(spare) != 1 {
			t.Fatalf("the daemon keeps guardians %v, not one", spare)
		}
		must(t, syscall.Kill(spare[0], syscall.SIGKILL))
		must(t, poll(func() bool { return dead(spare[0]) }))
		x.mustRestore("--wait")
		x.checks()
		x.mustRestore("--wait")
		x.checks()
	}
	if n := strings.Count(cli.Log(b.store), "the spare guardian is gone"); n != 2 {
		t.Errorf("the daemon noticed %d of 2 killed guardians", n)
	}
	b.run("umount", mnt)
}

// dead says whether all threads of a process have ended, reaped or not: until then its descriptors may be open.
func dead(pid int) bool {
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return len(threads) <= 1 && procfs.Ended(procfs.Stat(fmt.Sprintf("/proc/%d/stat", pid)))
}

// Dumps go straight into the store, and those that fail leave nothing of themselves.
func TestDump(t *testing.T) {
	b := newBench(t)
	x := b.start("alive", quiet)
	b.run("dump", b.store, "alive", "-t", strconv.Itoa(x.pid), "--leave-running", "--tag", "nightly")
	must(t, x.Check(1, limit))
	if !b.has("alive") {
		t.Error("no checkpoint was made")
	}
	for name, c := range map[string]struct {
		args []string
		code int
	}{
		"no such process": {[]string{"dump", b.store, "failed", "-t", "4194304"}, cli.Failed},
		"no process":      {[]string{"dump", b.store, "failed"}, cli.Usage},
		"criu's option": {[]string{"dump", b.store, "failed", "-t", strconv.Itoa(x.pid), "--", "--no-such-option"},
			cli.Failed},
		"name taken": {[]string{"dump", b.store, "alive", "-t", strconv.Itoa(x.pid)}, cli.Failed},
		"no criu": {[]string{"dump", b.store, "failed", "-t", strconv.Itoa(x.pid), "--criu", "/nonexistent"},
			cli.Failed},
		"criu dies": {[]string{"dump", b.store, "failed", "-t", strconv.Itoa(x.pid), "--criu", "/bin/true"},
			cli.Failed},
		"restore of a none": {[]string{"restore", b.store, "none"}, cli.Failed},
	} {
		if _, err := b.try(c.args...); cli.Code(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
		must(t, b.left.Nothing())
		if b.has("failed") {
			t.Errorf("%s: a failed dump left a checkpoint", name)
		}
	}
	must(t, x.Check(1, limit))
}

// When criu fails halfway nothing is left: no mounts, sockets, processes.
func TestCRIUFails(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", quiet)
	// The pid is taken.
	x.mustRestore("--wait")
	if _, err := b.try("restore", b.store, "one"); cli.Code(err) != cli.Failed ||
		!strings.Contains(err.Error(), "pids that the checkpoint needs are taken") {
		t.Errorf("a second process of the same pid: %v", err)
	}
	must(t, b.left.Nothing())
	x.checks()
	rnd := source(t)
	for range *strikes {
		for _, killer := range []string{
			fmt.Sprintf("sleep 0.%03d", rnd.IntN(300)),
			// When it has a child besides this one, by which it tries out the kernel, or a little later.
			fmt.Sprintf(
				"while read -r all </proc/$$/task/$$/children; set -- $all; [ $# -eq 1 ]; do :; done; sleep 0.%03d",
				rnd.IntN(20)),
		} {
			// criu is killed in the middle.
			x.Reset()
			criu := filepath.Join(t.TempDir(), "criu")
			script := fmt.Sprintf("#!/bin/sh\n(%s; kill -9 $$) &\nexec %s \"$@\"\n", killer, os.Getenv("GPUCR_FS_CRIU"))
			must(t, os.WriteFile(criu, []byte(script), 0o700))
			_, err := b.try("restore", "--wait", b.store, "one", "--criu", criu)
			x.Restored(x.pid)
			if err == nil {
				x.checks() // it came too late
			} else {
				must(t, x.Ended(limit))
			}
			must(t, b.left.Nothing())
		}
	}
}

// Who restores a checkpoint while it is being restored fails, and does the other no harm.
func TestSameTwice(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", quiet)
	mnt := t.TempDir()
	b.run("mount", b.store, mnt)
	t.Cleanup(func() { b.try("umount", "--force", mnt) })
	rnd := source(t)
	for range *strikes {
		x.Reset()
		stop := make(chan struct{})
		var reaping, running sync.WaitGroup
		reaping.Go(func() { x.Reap(stop) })
		var errs [2]error
		for i, after := range []int{0, rnd.IntN(60)} {
			running.Go(func() {
				wait(after)
				_, errs[i] = b.try("restore", b.store, "one")
			})
		}
		running.Wait()
		close(stop)
		reaping.Wait()
		x.Restored(x.pid)
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("of two restores at once one is to succeed: %v; %v", errs[0], errs[1])
		}
		x.checks()
	}
	b.run("umount", mnt)
}

// Many restores at once, from one daemon.
func TestManyAtOnce(t *testing.T) {
	b := newBench(t)
	const n = 20
	var xs []*target
	for i := range n {
		xs = append(
			xs,
			b.dumped(fmt.Sprintf("c%d", i), lazytarget.Options{MB: 8, Threads: 1, Seed: uint64(100 + i), Quiet: true}),
		)
	}
	must(t, b.left.Nothing())
	var all sync.WaitGroup
	for _, x := range xs {
		all.Go(func() {
			if _, err := x.restore("--wait"); err != nil {
				t.Error(err)
				return
			}
			if err := x.Check(1, limit); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, x := range xs {
		x.Kill()
	}
}

// A cache smaller than the image.
func TestSmallCache(t *testing.T) {
	b := newBench(t, "--cache-size", "8MiB")
	x := b.dumped("one", lazytarget.Options{MB: 96, Threads: 2, Seed: 3})
	for range 2 {
		x.mustRestore()
		must(t, x.Beats(50, limit))
		must(t, x.Stop(limit))
		must(t, b.left.Nothing())
	}
}

// A target that is killed midway takes everything with it.
func TestTargetKilled(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", lazytarget.Options{MB: 48, Threads: 2, Seed: 6})
	for range *strikes {
		x.mustRestore(onDemand, "--prefetch-rate", "2MiB")
		must(t, x.Beats(5, limit))
		x.Kill()
		must(t, b.left.Nothing())
	}
}

// A command that is interrupted or killed leaves nothing.
func TestCommandKilled(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", quiet)
	rnd := source(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		for range *strikes {
			x.Reset()
			cmd := program.Command("restore", b.store, "one")
			must(t, cmd.Start())
			wait(rnd.IntN(200))
			cmd.Process.Signal(sig)
			err := cmd.Wait()
			x.Restored(x.pid)
			if err == nil {
				x.checks()
			}
			for end := time.Now().Add(limit); len(program.Processes()) > 0 && time.Now().Before(end); wait(10) {
			}
			switch {
			case err == nil:
			case x.Alive(): // it ran already, and does so as a whole
				x.checks()
			default:
				must(t, x.Ended(limit))
			}
			if sig == syscall.SIGKILL {
				b.left.Killed()
			}
			must(t, b.left.Nothing())
		}
	}
}
