package runc

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLockIsOurs: runc, criu and the container do not get the lock of the restore, and its file does not stay.
func TestLockIsOurs(t *testing.T) {
	s := newStored(t)
	images := filepath.Join(s.dir, "images")
	s.start(nil)
	must(t, s.runc("checkpoint", "--image-path", images, s.name))
	must(t, s.runc("delete", "-f", s.name))
	seen := filepath.Join(s.dir, "seen")
	s.duringRestore("CONT", "ls -l /proc/$PPID/fd /proc/$$/fd > "+seen)
	s.mem.Reset()
	must(t, s.runc("restore", "-d", "--bundle", s.bundle, "--image-path", images, s.name))
	must(t, s.mem.Check(1, limit))
	text, err := os.ReadFile(seen)
	must(t, err)
	if strings.Contains(string(text), "~lock") {
		t.Errorf("runc or criu has the lock:\n%s", text)
	}
	for _, f := range s.descriptors() {
		if strings.Contains(f, "~lock") {
			t.Errorf("the container has the lock: %s", f)
		}
	}
	s.quiet()
	must(t, s.runc("delete", "-f", s.name))
	if left, _ := filepath.Glob(filepath.Join(s.bundle, "state", "*~lock")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	must(t, s.left.Nothing())
}

// descriptors gives what the first process of the container has open.
func (s *stored) descriptors() (all []string) {
	s.t.Helper()
	out, err := exec.Command("runc", "--root", filepath.Join(s.bundle, "state"), "state", s.name).Output()
	must(s.t, err)
	var state struct{ PID int }
	must(s.t, json.Unmarshal(out, &state))
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", state.PID))
	must(s.t, err)
	for _, l := range links {
		to, _ := os.Readlink(l)
		all = append(all, to)
	}
	return all
}

// console takes the terminals that the runtime makes, one for each connection.
func console(t *testing.T) (socket string, terminals <-chan *os.File) {
	t.Helper()
	dir, err := os.MkdirTemp("", "con") // short
	must(t, err)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	must(t, err)
	t.Cleanup(func() { l.Close(); os.RemoveAll(dir) })
	got := make(chan *os.File, 8)
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			oob := make([]byte, unix.CmsgSpace(4))
			_, n, _, _, err := c.ReadMsgUnix(make([]byte, 4096), oob)
			c.Close()
			if err != nil {
				continue
			}
			if msgs, err := unix.ParseSocketControlMessage(oob[:n]); err == nil && len(msgs) == 1 {
				if fds, err := unix.ParseUnixRights(&msgs[0]); err == nil {
					got <- os.NewFile(uintptr(fds[0]), "terminal")
				}
			}
		}
	}()
	return filepath.Join(dir, "s"), got
}

// TestConsole: a container with a terminal is restored with another one, which its caller gets.
func TestConsole(t *testing.T) {
	s := newStored(t)
	file := filepath.Join(s.bundle, "config.json")
	text, err := os.ReadFile(file)
	must(t, err)
	var spec map[string]any
	must(t, json.Unmarshal(text, &spec))
	spec["process"].(map[string]any)["terminal"] = true
	spec["mounts"] = append(spec["mounts"].([]any), map[string]any{"destination": "/dev/pts", "type": "devpts",
		"source": "devpts", "options": []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}})
	text, err = json.Marshal(spec)
	must(t, err)
	must(t, os.WriteFile(file, text, 0o644))
	socket, terminals := console(t)
	terminal := func() *os.File {
		select {
		case f := <-terminals:
			t.Cleanup(func() { f.Close() })
			return f
		case <-time.After(limit):
			t.Fatal("the caller got no terminal")
			return nil
		}
	}
	must(t, s.runc("run", "-d", "--console-socket", socket, "--bundle", s.bundle, s.name))
	terminal()
	must(t, s.mem.Ready(limit))
	images := filepath.Join(s.dir, "images")
	must(t, s.runc("checkpoint", "--image-path", images, s.name))
	must(t, s.runc("delete", "-f", s.name))
	for range 2 {
		s.mem.Reset()
		pid := filepath.Join(s.dir, "pid")
		must(t, s.runc("restore", "--detach", "--console-socket="+socket, "--pid-file", pid, "--bundle", s.bundle,
			"--image-path", images, s.name))
		f := terminal()
		must(t, s.mem.Check(1, limit))
		if _, err := os.ReadFile(pid); err != nil {
			t.Error(err)
		}
		if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
			t.Errorf("what the caller got is no terminal: %v", err)
		}
		s.quiet()
		must(t, s.runc("delete", "-f", s.name))
	}
	must(t, s.left.Nothing())
}

// TestPausedRuntime: a paused container is dumped, and stays paused if it stays. It is restored running.
func TestPausedRuntime(t *testing.T) {
	s := newStored(t)
	s.start(nil)
	must(t, s.runc("pause", s.name))
	for i, more := range [][]string{{"--leave-running"}, nil} {
		images := filepath.Join(s.dir, fmt.Sprintf("images-%d", i))
		must(t, s.runc(append(append([]string{"checkpoint", "--image-path", images}, more...), s.name)...))
		if more != nil {
			if got := s.status(); got != "paused" {
				t.Errorf("the container is %q", got)
			}
			continue
		}
		must(t, s.runc("delete", "-f", s.name))
		s.restored(images)
	}
	must(t, s.left.Nothing())
}

// TestPIDAtTheEnd: a runtime that writes the pid and ends while gpucr-runc reads what was in the file before has
// restored the container.
func TestPIDAtTheEnd(t *testing.T) {
	s := newStored(t)
	s.start(nil)
	images := filepath.Join(s.dir, "images")
	must(t, s.runc("checkpoint", "--image-path", images, s.name))
	real, err := exec.LookPath("runc")
	must(t, err)
	// A read of a pipe with a name ends when all have closed it: 0.2 s after the end of this script.
	script := fmt.Sprintf(`#!/bin/bash
args=("$@")
for i in "${!args[@]}"; do
	[[ ${args[i]} == --pid-file ]] && file=${args[i+1]} args[i+1]+=.real
	[[ ${args[i]} == --pid-file=* ]] && file=${args[i]#*=} args[i]+=.real
done
[[ $file ]] || exec %[1]s "$@"
mkfifo "$file" && exec 3>"$file" && %[1]s "${args[@]}" 3>&- || exit
sleep 0.2 &
mv "$file.real" "$file"
`, real)
	late := filepath.Join(s.dir, "late-runc")
	must(t, os.WriteFile(late, []byte(script), 0o755))
	text, err := json.Marshal(map[string]string{"store": s.store, "criu": s.criu, "runtime": late})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(s.dir, "runtime.json"), text, 0o600))
	s.restored(images)
	must(t, s.left.Nothing())
}

// TestTwoCheckpoints: of two checkpoints of one container at once, the second waits for the first, or is refused where
// it would wait for long. Each can be restored, and the container is well.
func TestTwoCheckpoints(t *testing.T) {
	s := newStored(t)
	s.start(nil)
	type result struct {
		images string
		err    error
	}
	results := make(chan result)
	for i := range 2 {
		go func() {
			images := filepath.Join(s.dir, fmt.Sprintf("images-%d", i))
			cmd := exec.Command(s.runtime, "--root", filepath.Join(s.bundle, "state"), "--criu", s.criu, "checkpoint",
				"--leave-running", "--image-path", images, s.name)
			log, err := os.Create(images + ".log")
			if err == nil {
				cmd.Stderr = log
				err = errors.Join(cmd.Run(), log.Close())
			}
			if text, _ := os.ReadFile(images + ".log"); err != nil {
				err = fmt.Errorf("%w: %s", err, text)
			}
			results <- result{images, err}
		}()
	}
	var good []string
	for range 2 {
		r := <-results
		t.Logf("%s: %v", filepath.Base(r.images), r.err)
		if r.err == nil {
			good = append(good, r.images)
		} else if all, _ := os.ReadDir(r.images); len(all) > 0 || !strings.Contains(r.err.Error(), "goes on") {
			t.Errorf("a checkpoint failed with %v, and left %v", r.err, all)
		}
	}
	if len(good) == 0 {
		t.Fatal("both checkpoints failed")
	}
	must(t, s.mem.Check(1, limit))
	if got := s.status(); got != "running" {
		t.Errorf("the container is %q", got)
	}
	if n := len(s.checkpoints()); n != len(good) {
		t.Errorf("the store has %d checkpoints, %d were made", n, len(good))
	}
	must(t, s.runc("delete", "-f", s.name))
	for _, images := range good {
		s.restored(images)
	}
	must(t, s.left.Nothing())
}
