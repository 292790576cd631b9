package plugin

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var kills = flag.Int("kills.n", 1, "how often each is killed while VRAM follows a process")

// newKills is an application in a store, to be restored by gpucr-fs restore.
func newKills(t *testing.T) (f *lazyFaults, store string) {
	f = newLazyFaults(t, func(b *bench) {
		store = filepath.Join(b.Dir, "store")
		b.gpucr("init", store)
		b.daemonsEnd(store)
		b.gpucr("mount", "--new", "gpu", store, b.images)
	})
	f.gpucr("seal", store, "gpu")
	f.gpucr("umount", f.images)
	return f, store
}

// command begins gpucr-fs restore, which waits for the queues.
func (f *lazyFaults) command(store string) *run {
	f.T.Helper()
	f.begin()
	return f.start(f.Command("env", "LD_PRELOAD="+f.Shim, f.program, "restore", "--criu", f.CRIU, "--vram=lazy",
		"--wait", store, "gpu"))
}

// childrenOf are the processes that a process has started and whose program is exe.
func childrenOf(pid int, exe string) (out []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, l := range lists {
		b, _ := os.ReadFile(l) // none when it is gone
		for s := range strings.FieldsSeq(string(b)) {
			if is, err := os.Readlink(filepath.Join("/proc", s, "exe")); err != nil || is != exe {
				continue
			}
			if child, err := strconv.Atoi(s); err == nil {
				out = append(out, child)
			}
		}
	}
	return out
}

// Daemon, its successor, the helper, its watchdog or CRIU, which is the restore server, too, is killed at a random
// moment of a restore on demand: VRAM is right, or the processes are ended and the command says so. No queue comes to
// VRAM that is not filled.
func TestKilledUnderVRAM(t *testing.T) {
	f, store := newKills(t)
	criu, err := filepath.EvalSymlinks(f.CRIU)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r := f.command(store)
	if err := r.wait(); err != nil {
		t.Fatal(err)
	}
	f.all = f.ready().Sub(began)
	if !f.outcome(r, nil) {
		t.Fatal("the application is gone after a restore that nobody disturbed")
	}
	victims := []struct {
		name   string
		strike func(r *run)
	}{
		{"criu", func(r *run) { kill(childrenOf(r.cmd.Process.Pid, criu)) }},
		{"helper", func(*run) { kill(f.helpersOf(false)) }},
		{"daemon", func(*run) { kill(f.daemons(store)) }},
		{"daemon and successor", func(r *run) {
			first := f.daemons(store)
			kill(first)
			for late := time.Now().Add(f.all); time.Now().Before(late); time.Sleep(time.Millisecond) {
				if next := f.daemons(store); len(next) > 0 && (len(first) == 0 || next[0] != first[0]) {
					time.Sleep(time.Duration(f.rand.Int64N(int64(f.all))))
					kill(next)
					return
				}
			}
		}},
		{"watchdog", func(*run) { kill(f.helpersOf(true)) }},
	}
	for _, v := range victims {
		t.Run(v.name, func(t *testing.T) {
			defer f.as(t)()
			alive := 0
			for range *kills {
				r := f.command(store)
				time.Sleep(time.Duration(f.rand.Int64N(int64(f.all))))
				v.strike(r)
				if f.outcome(r, r.wait()) {
					alive++
				}
			}
			t.Logf("the application went on after %d of %d, the others ended it with a message", alive, *kills)
		})
	}
}
