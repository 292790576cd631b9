package runc

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/procfs"
	"github.com/gpucr/gpucr-fs/tests/cli"
)

// duringRestore has a shell script run with each criu of a restore, once the runtime has mounted the container's root
// for it. In it, $mounted and $state are that mount and the file that says that the container is there, $restore is
// gpucr-fs, stop sends it a signal, ended waits for the end of the runtime, and wait_for for one of the rest.
func (s *stored) duringRestore(signal, script string) {
	s.t.Helper()
	file := filepath.Join(s.dir, "between", "criu")
	must(s.t, os.MkdirAll(filepath.Dir(file), 0o755))
	real, err := cli.FindCRIU()
	must(s.t, err)
	script = fmt.Sprintf(`#!/bin/bash
mounted=%s state=%s
restore=$(awk '/^PPid/ {print $2}' /proc/$PPID/status)
stop() { kill -%s "$restore"; }
first() { # the pid of the first task, which criu makes its sibling
	for task in $(cat /proc/$PPID/task/*/children 2>/dev/null); do
		[[ $task != $$ ]] && return
	done
	false
}
elsewhere() { first && [[ ! /proc/$task/cwd -ef /proc/$$/cwd ]]; } # it has left the work directory
flows() { # more than 4 MiB are there
	first && awk '/RssAnon/ && $2 > 4096 {found = 1} END {exit !found}' /proc/$task/status
}
alive() { [[ -e /proc/$PPID/exe ]]; }
ended() { while alive; do sleep 0.01; done; }
wait_for() { until "$@" || ! alive; do :; done; } # or for the end of the runtime, if it was too fast to be seen
if [[ $1 == swrk ]] && mountpoint -q "$mounted"; then
%s
fi
exec %s "$@"
`, s.criuRoot(), filepath.Join(filepath.Dir(s.criuRoot()), "state.json"), signal, script, real)
	must(s.t, os.WriteFile(file, []byte(script), 0o755))
	text, err := json.Marshal(map[string]string{"store": s.store, "criu": file})
	must(s.t, err)
	must(s.t, os.WriteFile(filepath.Join(s.dir, "runtime.json"), text, 0o600))
	s.container.criu = file // the runtime takes its option first
}

// criuRoot is where runc mounts the container's root for criu.
func (s *stored) criuRoot() string { return filepath.Join(s.bundle, "state", s.name, "criu-root") }

// rootfs lists the files of the container's root, but for those that its process makes.
func (s *stored) rootfs() (all []string) {
	s.t.Helper()
	root := filepath.Join(s.bundle, "rootfs")
	must(s.t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		all = append(all, path)
		if err == nil && d.Name() == "status" {
			err = fs.SkipDir
		}
		return err
	}))
	return all
}

// runtimeGone waits until no runtime of a former command is there.
func (s *stored) runtimeGone() {
	s.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		running := ""
		all, err := filepath.Glob("/proc/[0-9]*/cmdline")
		must(s.t, err)
		for _, f := range all {
			if line, _ := os.ReadFile(f); strings.Contains(string(line), filepath.Join(s.bundle, "state")+"\x00") {
				running = strings.ReplaceAll(string(line), "\x00", " ")
			}
		}
		if running == "" {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("a runtime stays: %s\n%s", running, cli.Log(s.store))
		}
	}
}

// moments are when a restore is ended: each is a script of duringRestore.
var moments = []struct{ when, script string }{
	{"before criu runs", "stop; ended"},
	{"with the runtime", "kill -KILL $PPID; stop; ended"},
	{"when there is a task", "(wait_for first; stop) &"},
	{"while criu stands still", "(wait_for first; kill -STOP $$; stop) &"},
	{"before gpucr-fs sees the task", `kill -STOP "$restore"
(wait_for elsewhere; kill -STOP $$; stop; kill -CONT "$restore") &`},
	{"when the memory flows", `kill -STOP "$restore"
(wait_for flows; stop; kill -CONT "$restore") &`},
	{"when criu is done", `kill -STOP "$restore"
(while mountpoint -q "$mounted" && ! [[ -e $state ]]; do :; done; stop; kill -CONT "$restore") &`},
}

// gone waits for the end of the processes of the container and of criu, which the runtime puts into its cgroup. A task
// whose criu has given up ends by itself, a little later.
func (s *stored) gone(when string) {
	s.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		left := s.processes()
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			s.t.Errorf("%s there are %s", when, left)
			return
		}
	}
}

func (s *stored) processes() (all []string) {
	s.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	must(s.t, err)
	for _, f := range files {
		text, _ := os.ReadFile(f)
		if !strings.Contains(string(text), "/"+s.name+"\n") {
			continue
		}
		if stat := procfs.Stat(filepath.Join(filepath.Dir(f), "stat")); !procfs.Ended(stat) {
			all = append(all, fmt.Sprint(f, stat))
		}
	}
	return all
}

// TestKilledRestore: gpucr-fs is killed or interrupted while it restores a container. The container's root stays whole
// whatever is done then, no mount and no process of it stays, and the next restore succeeds.
func TestKilledRestore(t *testing.T) {
	s := newStored(t)
	t.Cleanup(func() { // or else the removal of the test's folder would follow what a failure leaves
		yards, _ := filepath.Glob(filepath.Join(s.dir, "*", ".criu.cgyard.*"))
		for _, at := range append(yards, s.criuRoot()) {
			unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	})
	t.Setenv("TMPDIR", s.dir) // for the folders of this test's programs alone
	images := filepath.Join(s.dir, "images")
	s.start(nil)
	must(t, s.runc("checkpoint", "--image-path", images, s.name))
	must(t, s.runc("delete", "-f", s.name))
	whole := s.rootfs()
	for i, signal := range []string{"KILL", "TERM", "INT"} {
		for k, m := range moments {
			remove := (i+k)%2 == 0
			done := t.Run(fmt.Sprintf("%s %s, removed %v", signal, m.when, remove), func(t *testing.T) {
				parent := s.t
				s.t = t
				defer func() { s.t = parent }()
				s.duringRestore(signal, m.script)
				must(t, os.RemoveAll(filepath.Join(s.bundle, "restore.log")))
				err := s.runc("restore", "-d", "--bundle", s.bundle, "--image-path", images, s.name)
				t.Logf("the restore ended with %v", err)
				s.runtimeGone()
				s.duringRestore(signal, ":")
				if remove || s.status() != "" { // or else the container is there already
					must(t, s.runc("delete", "-f", s.name))
					s.gone("after the removal")
				}
				got := s.rootfs() // until the next call there may be a folder of criu's
				for _, f := range whole {
					if !slices.Contains(got, f) {
						t.Fatalf("the container's root has %v, not %v", got, whole)
					}
				}
				s.restored(images)
				s.gone("after the next restore")
				mounts, err := os.ReadFile("/proc/self/mountinfo")
				must(t, err)
				if strings.Contains(string(mounts), s.dir) {
					t.Errorf("a mount stays:\n%s", mounts)
				}
				if got := s.rootfs(); !slices.Equal(got, whole) {
					t.Fatalf("after a restore the container's root has %v, not %v", got, whole)
				}
			})
			if !done {
				return
			}
		}
	}
	must(t, s.left.Nothing())
}
