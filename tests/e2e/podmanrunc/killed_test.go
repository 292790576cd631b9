package podmanrunc

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/tests/cli"
)

// TestPodmanKilled: gpucr-fs is killed while podman restores a container. podman says so, and its next restore of the
// same checkpoint succeeds, with all files of the container's root.
func TestPodmanKilled(t *testing.T) {
	m := newMachine(t)
	store := m.stores("one")[0]
	m.use(store)
	m.start("web")
	m.podman("container", "checkpoint", "web")
	real := m.criu
	m.criu = filepath.Join(m.dir, "between", "criu")
	must(t, os.MkdirAll(filepath.Dir(m.criu), 0o755))
	script := fmt.Sprintf(`#!/bin/bash
runtime=/proc/$PPID
if [[ $1 == swrk ]] && tr '\0' '\n' < $runtime/cmdline | grep -qx restore && grep -q /criu-root /proc/self/mountinfo
then
	tasks() { cat $runtime/task/*/children | wc -w; }
	(until (( $(tasks) > 1 )); do :; done; kill -KILL "$(awk '/^PPid/ {print $2}' $runtime/status)") &
fi
exec %s "$@"
`, real)
	must(t, os.WriteFile(m.criu, []byte(script), 0o755))
	m.use(store)
	out, err := m.try("container", "restore", "web")
	t.Logf("the restore that was killed: %v %s", err, out)
	if err == nil {
		t.Fatal("a restore succeeded that was killed")
	}
	m.whole()
	m.criu = real
	m.use(store)
	t.Log(strings.TrimSpace(m.podman("ps", "--all", "--format", "{{.Names}} {{.Status}}")))
	m.answered("web")
	m.whole()
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), "criu-root") {
		t.Errorf("runc's mount stays: %v\n%s\n%s", err, mounts, cli.Log(store))
	}
	m.podman("rm", "-f", "-t", "0", "web")
}
