package runc

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestRestoreBesideDelete: a container is restored while a removal of that ID is under way, which began when there was
// no such container. runc would remove what it finds under the ID, with the container's root mounted in it.
func TestRestoreBesideDelete(t *testing.T) {
	s := newStored(t)
	images := filepath.Join(s.dir, "images")
	s.start(nil)
	must(t, s.runc("checkpoint", "--image-path", images, s.name))
	must(t, s.runc("delete", "-f", s.name))
	whole := s.rootfs()
	began := filepath.Join(s.dir, "began")
	// The removal goes on when the restore is in the middle, or after 5 s without one.
	s.around(`if needs delete; then
	touch ` + began + `
	until mountpoint -q ` + s.criuRoot() + ` || ((SECONDS > 5)); do sleep 0.01; done
fi
runc`)
	deleted := make(chan error, 1)
	go func() { deleted <- s.runc("delete", "-f", s.name) }()
	for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(began); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the removal does not begin")
		}
	}
	s.mem.Reset()
	restored := s.runc("restore", "-d", "--bundle", s.bundle, "--image-path", images, s.name)
	if err := <-deleted; err != nil {
		t.Error(err)
	}
	s.around("runc")
	if got := s.rootfs(); !slices.Equal(got, whole) {
		t.Fatalf("the container's root has %v, not %v", got, whole)
	}
	must(t, restored)
	must(t, s.mem.Check(1, limit))
	s.quiet()
	must(t, s.runc("delete", "-f", s.name))
	if left, _ := filepath.Glob(filepath.Join(s.bundle, "state", "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	must(t, s.left.Nothing())
}

// TestHookOfKilled: a hook of a container that a killed restore has left starts a process that stays. The next restore
// does not wait for its end.
func TestHookOfKilled(t *testing.T) {
	s := newStored(t)
	images, pid := filepath.Join(s.dir, "images"), filepath.Join(s.dir, "hook")
	s.start(nil)
	must(t, s.runc("checkpoint", "--image-path", images, s.name))
	must(t, s.runc("delete", "-f", s.name))
	t.Cleanup(func() { unix.Unmount(s.criuRoot(), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
	file := filepath.Join(s.bundle, "config.json")
	text, err := os.ReadFile(file)
	must(t, err)
	var spec map[string]any
	must(t, json.Unmarshal(text, &spec))
	spec["hooks"] = map[string]any{"poststop": []any{map[string]any{"path": "/bin/sh", "args": []string{"sh", "-c",
		"sleep 600 >/dev/null 2>&1 </dev/null & echo $! > " + pid}}}}
	hooked, err := json.Marshal(spec)
	must(t, err)
	must(t, os.WriteFile(file, hooked, 0o644))
	s.duringRestore("KILL", moments[len(moments)-1].script)
	if err := s.runc("restore", "-d", "--bundle", s.bundle, "--image-path", images, s.name); err == nil {
		t.Fatal("a restore succeeded that was killed")
	}
	s.runtimeGone()
	if s.status() == "" {
		t.Fatal("the restore was killed before the container was there")
	}
	s.duringRestore("KILL", ":")
	must(t, s.runc("delete", "-f", s.name))
	hook, err := os.ReadFile(pid)
	must(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(hook)))
	must(t, err)
	t.Cleanup(func() { unix.Kill(n, unix.SIGKILL) })
	if left, _ := filepath.Glob(filepath.Join(s.bundle, "state", "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	must(t, os.WriteFile(file, text, 0o644))
	s.restored(images)
	must(t, unix.Kill(n, unix.SIGKILL))
	must(t, s.left.Nothing())
}
