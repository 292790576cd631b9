package podmanrunc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/cli"
)

// moments are when gpucr-fs is killed, each as what a shell script does before that.
var moments = []struct{ when, script string }{
	{"when criu has made a task", "until (( $(tasks | wc -w) > 1 )) || over; do :; done"},
	// The task stays behind in a frozen cgroup. While runc is stopped criu waits for its answer.
	{"when criu hears of no task's end any more", `
log=/proc/$$/cwd/restore.log
frozen=$(awk '/ - cgroup2 / {print $5; exit}' /proc/self/mountinfo)/gpucr-test-$$
trap 'for i in {1..100}; do rmdir $frozen && break; sleep .1; done 2>/dev/null' EXIT
until grep -qs "pie:" $log || over; do :; done
kill -STOP $PPID
until grep -qs "Running post-restore scripts" $log || over; do :; done
mkdir $frozen
echo 1 >$frozen/cgroup.freeze
for task in $(tasks); do (( task == $$ || task == BASHPID )) || echo $task >$frozen/cgroup.procs; done
until grep -qs "frozen 1" $frozen/cgroup.events || over; do :; done # or else it may get on
kill -CONT $PPID
deaf() { grep -qs futex /proc/$$/wchan && grep -qs "SigCgt:.0*$" /proc/$$/status; }
missed() { grep -qs "Restore finished successfully" $log; } # on a machine that is busy
until deaf || missed || over; do :; done`},
}

// killing has gpucr-fs killed in each restore, after what a script does. What it returns takes that back.
func (m *machine) killing(script string) (back func()) {
	m.t.Helper()
	real := m.criu
	m.criu = filepath.Join(m.dir, "between", "criu")
	must(m.t, os.MkdirAll(filepath.Dir(m.criu), 0o755))
	script = fmt.Sprintf(`#!/bin/bash
runtime=/proc/$PPID
if [[ $1 == swrk ]] && tr '\0' '\n' < $runtime/cmdline | grep -qx restore && grep -q /criu-root /proc/self/mountinfo
then
	tasks() { cat $runtime/task/*/children 2>/dev/null; }
	over() { ! [[ -e $runtime/exe ]]; }
	restore=$(awk '/^PPid/ {print $2}' $runtime/status)
	# Where it was killed already the runtime has another parent.
	if [[ $(</proc/$restore/comm) == gpucr-fs ]]
	then
		kill -STOP $restore # it cannot be too fast
		((%s
		kill -KILL $restore) &) # no child of criu's
	fi
fi
exec %s "$@"
`, script, real)
	must(m.t, os.WriteFile(m.criu, []byte(script), 0o755))
	m.use(m.store)
	return func() {
		m.criu = real
		m.use(m.store)
	}
}

// mounts gives what runc and criu have mounted for a restore.
func (m *machine) mounts() (all []string) {
	m.t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	must(m.t, err)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if strings.HasSuffix(f[4], "/criu-root") ||
			strings.HasPrefix(f[4], m.dir) && strings.HasPrefix(filepath.Base(f[4]), ".criu.cgyard.") {
			all = append(all, f[4])
		}
	}
	return all
}

// TestPodmanKilled: gpucr-fs is killed while podman restores a container. podman says so, soon, its next restore of the
// same checkpoint succeeds, with all files of the container's root, and a removal leaves nothing.
func TestPodmanKilled(t *testing.T) {
	m := newMachine(t)
	t.Cleanup(func() { // or else the removal of the test's folder would follow what a failure leaves
		for _, at := range m.mounts() {
			unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	})
	if text, err := os.ReadFile("/proc/self/mountinfo"); err != nil || !strings.Contains(string(text), " - cgroup2 ") {
		t.Fatalf("no cgroup v2 is mounted, %v: mount -t cgroup2 none DIR", err)
	}
	m.use(m.stores("one")[0])
	for _, at := range moments {
		m.start("web")
		m.podman("container", "checkpoint", "web")
		for _, remove := range []bool{false, true} {
			back := m.killing(at.script)
			begin := time.Now()
			out, err := m.try("container", "restore", "web")
			t.Logf("the restore that was killed %s: after %v %v %s", at.when, time.Since(begin), err, out)
			if err == nil {
				t.Fatal("a restore succeeded that was killed")
			}
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && !exit.Exited() {
				t.Fatal("podman waits for ever")
			}
			m.whole()
			back()
			if remove {
				m.podman("rm", "-f", "-t", "0", "web")
			} else {
				m.answered("web")
				m.whole()
				m.podman("container", "checkpoint", "web")
			}
			if left := m.mounts(); len(left) > 0 {
				t.Errorf("left, killed %s, removed %v: %v\n%s", at.when, remove, left, cli.Log(m.store))
			}
		}
	}
}
