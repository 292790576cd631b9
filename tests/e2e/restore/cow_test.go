package restore

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

// sized gives the memory that the processes of a session take together, in bytes: what several have in common
// counts once.
func sized(t testing.TB, session int) (total int64) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	must(t, err)
	for _, dir := range all {
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		_, rest, ok := strings.Cut(string(stat), ") ")
		if f := strings.Fields(rest); err != nil || !ok || len(f) < 4 || f[3] != strconv.Itoa(session) {
			continue
		}
		rollup, err := os.Open(filepath.Join(dir, "smaps_rollup"))
		must(t, err)
		for s := bufio.NewScanner(rollup); s.Scan(); {
			var kib int64
			if n, _ := fmt.Sscanf(s.Text(), "Pss: %d kB", &kib); n == 1 {
				total += kib << 10
			}
		}
		must(t, rollup.Close())
	}
	return total
}

// Processes that shared memory because one forked the others share it again, as much as after a restore by criu
// alone, and each has what it had. What they do not share is still left to come on demand.
func TestSharedMemory(t *testing.T) {
	bin, err := lazytarget.BuildFamily(t.TempDir())
	must(t, err)
	const children, processes, mb = 4, 6, 64
	for _, tc := range []struct {
		name           string
		changed, block int
		shared         bool
	}{
		{"pages", 10, 1, true},     // no chunk is the same in two processes
		{"blocks", 200, 512, true}, // whole chunks are
		{"nothing", 1000, 1, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			x := b.startProgram(bin, "family",
				lazytarget.Options{MB: mb, Threads: children, Seed: 5, Changed: tc.changed, Block: tc.block})
			before := sized(t, x.pid)
			b.run("dump", b.store, "family", "-t", strconv.Itoa(x.pid))
			must(t, x.Dumped())
			checks := func() {
				t.Helper()
				for range 2 {
					must(t, x.Check(processes, limit))
				}
				x.Kill()
			}

			mnt := t.TempDir()
			b.run("mount", b.store, mnt)
			t.Cleanup(func() { b.try("umount", "--force", mnt) })
			x.Reset()
			must(t, criu(t, t.TempDir(), "restore", "-D", mnt, "-d"))
			x.Restored(x.pid)
			eager := sized(t, x.pid)
			checks()
			b.run("umount", mnt)

			for range 2 { // without a profile, and with one
				r := parse(t, x.mustRestore("--json", "--wait"))
				got := sized(t, x.pid)
				t.Logf("%d MiB before the dump, %d after criu restore, %d now, of which %d on demand",
					before>>20, eager>>20, got>>20, r.Status.Total>>20)
				if got > eager+eager/10 {
					t.Errorf("%d MiB where criu's own restore takes %d", got>>20, eager>>20)
				}
				if on := r.Status.Total; !tc.shared && on < processes*mb<<20*9/10 || tc.shared && on > eager {
					t.Errorf("%d MiB are left to come on demand", on>>20)
				}
				checks()
				must(t, quietly(b))
			}
			if !tc.shared {
				return
			}
			x.mustRestore("--wait", "--copy-shared")
			if got := sized(t, x.pid); got < 2*eager {
				t.Errorf("%d MiB with a copy for each process, %d shared", got>>20, eager>>20)
			}
			checks()
		})
	}
}

// A page that several processes share cannot be read: the restore fails, or the processes get SIGBUS where it is
// left to come on demand; nobody reads a wrong byte. With copies it is always the latter.
func TestSharedMemoryDamaged(t *testing.T) {
	bin, err := lazytarget.BuildFamily(t.TempDir())
	must(t, err)
	b := newBench(t)
	x := b.startProgram(bin, "family", lazytarget.Options{MB: 24, Threads: 2, Seed: 6, Changed: 200, Block: 512})
	b.run("dump", b.store, "family", "-t", strconv.Itoa(x.pid))
	must(t, x.Dumped())
	rnd := source(t)
	failed := 0
	for range *strikes {
		heal := damage(t, b.store, rnd)
		for _, args := range [][]string{nil, {"--copy-shared"}} {
			_, err := x.restore(append([]string{"--wait"}, args...)...)
			switch {
			case err == nil:
				must(t, x.Check(4, limit))
			case cli.Code(err) != cli.Partial:
				failed++
				t.Log(err)
				must(t, x.Ended(limit))
			}
			must(t, x.Err())
			x.Kill()
			must(t, quietly(b))
		}
		heal()
	}
	t.Logf("%d of %d restores failed", failed, 2**strikes)
	x.mustRestore("--wait")
	must(t, x.Check(4, limit))
	x.Kill()
}
