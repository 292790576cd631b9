package restore

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What a killed CRIU has forked goes with it, stopped or asleep; programs that it has started, and action scripts with
// what they have forked, stay.
func TestOrphans(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "criu")
	// A group of processes that loses its parent with one of them stopped is hung up by the kernel. A subshell is a
	// fork. $$ stays the shell's own pid in it; the parent of what it starts is the subshell.
	script := fmt.Sprintf(`#!/bin/sh
cd %s
trap "" HUP
me() { sh -c 'echo $PPID'; }
( me >stopped; kill -STOP $(cat stopped); : ) &
( me >asleep; while :; do sleep 1; done; : ) &
sleep 60 & echo $! >started
CRTOOLS_SCRIPT_ACTION=post-restore \
	sh -c '( sh -c "echo \$PPID" >forked; while :; do sleep 1; done; : ) & echo $$ >script; wait' &
while [ ! -s stopped ] || [ ! -s asleep ] || [ ! -s forked ] || [ ! -s script ]; do sleep 0.01; done
while ! grep -q "^State:.T" /proc/$(cat stopped)/status; do sleep 0.01; done
kill -9 $$
`, dir)
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	// An orphan that was there before is somebody else's.
	if err := adopt(true); err != nil {
		t.Fatal(err)
	}
	older := filepath.Join(dir, "older")
	start := fmt.Sprintf(`( sh -c 'echo $PPID' >%s; while :; do sleep 1; done; : ) &
		while [ ! -s %s ]; do sleep 0.01; done`, older, older)
	if err := exec.Command("sh", "-c", start).Run(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond) // a clock tick and more
	c, err := Start(Options{Program: program,
		EndTree: func(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.exited:
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	var stay []string
	for _, name := range []string{"stopped", "asleep", "started", "script", "forked", "older"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		if runs(pid) {
			stay = append(stay, name)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Error(err)
		}
	}
	if want := []string{"started", "script", "forked", "older"}; !slices.Equal(stay, want) {
		t.Errorf("%q stay, not %q", stay, want)
	}
}

// runs tells whether a process has not ended; who ended may not have been waited for yet.
func runs(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && !strings.Contains(string(status), "State:\tZ")
}
