package podmanrunc

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/cli"
)

// killing has gpucr-fs killed in each restore when criu has made a task. What it returns takes that back.
func (m *machine) killing() (back func()) {
	m.t.Helper()
	real := m.criu
	m.criu = filepath.Join(m.dir, "between", "criu")
	must(m.t, os.MkdirAll(filepath.Dir(m.criu), 0o755))
	script := fmt.Sprintf(`#!/bin/bash
runtime=/proc/$PPID
if [[ $1 == swrk ]] && tr '\0' '\n' < $runtime/cmdline | grep -qx restore && grep -q /criu-root /proc/self/mountinfo
then
	tasks() { cat $runtime/task/*/children 2>/dev/null | wc -w; }
	restore=$(awk '/^PPid/ {print $2}' $runtime/status)
	kill -STOP $restore # it cannot be too fast
	(until (( $(tasks) > 1 )) || ! [[ -e $runtime/exe ]]; do :; done; kill -KILL $restore) &
fi
exec %s "$@"
`, real)
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

// TestPodmanKilled: gpucr-fs is killed while podman restores a container. podman says so, its next restore of the same
// checkpoint succeeds, with all files of the container's root, and a removal leaves nothing.
func TestPodmanKilled(t *testing.T) {
	m := newMachine(t)
	t.Cleanup(func() { // or else the removal of the test's folder would follow what a failure leaves
		for _, at := range m.mounts() {
			unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	})
	m.use(m.stores("one")[0])
	m.start("web")
	m.podman("container", "checkpoint", "web")
	for _, remove := range []bool{false, true} {
		back := m.killing()
		out, err := m.try("container", "restore", "web")
		t.Logf("the restore that was killed: %v %s", err, out)
		if err == nil {
			t.Fatal("a restore succeeded that was killed")
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
			t.Errorf("left, removed %v: %v\n%s", remove, left, cli.Log(m.store))
		}
	}
}
