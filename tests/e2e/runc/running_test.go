package runc

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/procfs"
)

// TestRunningStays: gpucr-fs is killed when it has restored a container, which runs, and before it has said so. Each
// later restore of that ID is refused and leaves the container unharmed, also when the runtime cannot tell its state.
func TestRunningStays(t *testing.T) {
	s := newStored(t)
	images, kill := filepath.Join(s.dir, "images"), filepath.Join(s.dir, "kill")
	s.start(nil)
	must(t, s.runc("checkpoint", "--image-path", images, s.name))
	must(t, s.runc("delete", "-f", s.name))
	s.around(`runc; code=$?
if needs restore; then
	until [[ -e ` + kill + ` ]]; do sleep 0.01; done
	kill -9 $PPID
fi
exit $code`)
	s.mem.Reset()
	done := make(chan error, 1)
	go func() { done <- s.runc("restore", "-d", "--bundle", s.bundle, "--image-path", images, s.name) }()
	must(t, s.mem.Check(1, limit)) // all memory is there
	must(t, os.WriteFile(kill, nil, 0o600))
	if err := <-done; err == nil {
		t.Fatal("a restore succeeded that was killed")
	}
	s.runtimeGone()
	time.Sleep(time.Second)
	must(t, s.mem.Check(1, 20*time.Second))
	s.noteFirst()
	for _, script := range []string{"runc", "if needs state; then echo out of memory >&2; exit 1; fi; runc"} {
		s.around(script)
		must(t, os.RemoveAll(filepath.Join(s.bundle, "restore.log"))) // what was refused before
		err := s.runc("restore", "-d", "--bundle", s.bundle, "--image-path", images, s.name)
		if err == nil || !strings.Contains(err.Error(), "exists already") {
			t.Errorf("a restore of a container that runs: %v", err)
		}
		must(t, s.mem.Check(1, 20*time.Second))
		if got := s.status(); got != "running" {
			t.Fatalf("the container is %q", got)
		}
	}
	s.around("runc")
	s.quiet()
	must(t, s.runc("delete", "-f", s.name))
	s.restored(images)
	must(t, s.left.Nothing())
}

// noteFirst adds the first process of the container to the file of its lock, where a restore notes it if no script
// is between.
func (s *stored) noteFirst() {
	s.t.Helper()
	state := filepath.Join(s.bundle, "state")
	out, err := exec.Command("runc", "--root", state, "state", s.name).Output()
	must(s.t, err)
	var first struct{ PID int }
	must(s.t, json.Unmarshal(out, &first))
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	must(s.t, err)
	f, err := os.OpenFile(filepath.Join(state, s.name+"~lock"), os.O_WRONLY|os.O_APPEND, 0)
	must(s.t, err)
	defer f.Close()
	_, err = fmt.Fprintf(f, `{"boot":%q,"pid":%d,"began":%s}`+"\n", strings.TrimSpace(string(boot)), first.PID,
		procfs.Stat(fmt.Sprintf("/proc/%d/stat", first.PID))[19])
	must(s.t, err)
}

// TestStoppedOfKilled: gpucr-fs is killed when the container is there, and the container ends for want of its memory.
// The next restore takes its place: nobody was told of it.
func TestStoppedOfKilled(t *testing.T) {
	s := newStored(t)
	t.Cleanup(func() { unix.Unmount(s.criuRoot(), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
	images := filepath.Join(s.dir, "images")
	s.start(nil)
	must(t, s.runc("checkpoint", "--image-path", images, s.name))
	must(t, s.runc("delete", "-f", s.name))
	whole := s.rootfs()
	s.duringRestore("KILL", moments[len(moments)-1].script)
	if err := s.runc("restore", "-d", "--bundle", s.bundle, "--image-path", images, s.name); err == nil {
		t.Fatal("a restore succeeded that was killed")
	}
	s.runtimeGone()
	s.duringRestore("KILL", ":")
	for end := time.Now().Add(limit); s.status() != "stopped"; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the container is %q", s.status())
		}
	}
	must(t, os.RemoveAll(filepath.Join(s.bundle, "restore.log")))
	s.restored(images)
	if got := s.rootfs(); !slices.Equal(got, whole) {
		t.Errorf("the container's root has %v, not %v", got, whole)
	}
	must(t, s.left.Nothing())
}
